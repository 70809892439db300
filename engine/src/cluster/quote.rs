//! Quoting of names as the server quotes them when it prints an object.

/// Key words of any category but "unreserved" (`src/include/parser/kwlist.h`): as a name they are printed in quotes.
const KEYWORDS: &str = "\
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast \
    char character check coalesce collate collation column concurrently constraint create cross current_catalog \
    current_date current_role current_schema current_time current_timestamp current_user dec decimal default deferrable \
    desc distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest group \
    grouping having ilike in initially inner inout int integer intersect interval into is isnull join lateral leading \
    least left like limit localtime localtimestamp national natural nchar none not notnull null nullif numeric offset on \
    only or order out outer overlaps overlay placing position precision primary real references returning right row \
    select session_user setof similar smallint some substring symmetric table tablesample then time timestamp to \
    trailing treat trim true union unique user using values varchar variadic verbose when where window with \
    xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable";

/// Those that came later, with the version.
const LATER_KEYWORDS: [(u32, &str); 3] = [
    (13, "normalize"),
    (16, "json_array json_arrayagg json_object json_objectagg system_user"),
    (17, "json json_exists json_query json_scalar json_serialize json_table json_value merge_action"),
];

/// `quote_identifier`: quotes a name unless it is lower case and no key word of that version.
pub(super) fn quote_identifier(name: &str, major_version: u32) -> String {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if plain && !is_keyword(name, major_version) { name.to_owned() } else { double_quote(name) }
}

fn is_keyword(name: &str, major_version: u32) -> bool {
    let contains = |words: &str| words.split_ascii_whitespace().any(|word| word == name);
    contains(KEYWORDS) || LATER_KEYWORDS.iter().any(|&(since, words)| major_version >= since && contains(words))
}

fn double_quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers() {
        for (name, expected) in [
            ("t", "t"),
            ("_t1", "_t1"),
            ("T", "\"T\""),
            ("1t", "\"1t\""),
            ("a b", "\"a b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a$", "\"a$\""),
            ("tä", "\"tä\""),
            ("", "\"\""),
            ("user", "\"user\""),
            ("char", "\"char\""),
            ("authorization", "\"authorization\""),
            ("name", "name"),
            ("abort", "abort"),
        ] {
            assert_eq!(quote_identifier(name, 18), expected);
        }
        for (name, since) in [("normalize", 13), ("system_user", 16), ("json", 17)] {
            assert_eq!(quote_identifier(name, since - 1), name);
            assert_eq!(quote_identifier(name, since), format!("\"{name}\""));
        }
    }
}
