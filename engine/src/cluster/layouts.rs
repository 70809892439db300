//! The layouts of the three catalogs that must be read before `pg_attribute` can say what it, and every other
//! catalog, looks like.

use crate::{
    Error, ErrorKind, Result,
    schema::{Attribute, RowLayout},
};

/// Taken from real servers of every version; see the first lines of the file.
const LAYOUTS: &str = include_str!("layouts.txt");

/// Oid of `pg_attribute`, `pg_class` and `pg_database`; the same in all versions.
pub(super) const PG_ATTRIBUTE: u32 = 1249;
pub(super) const PG_CLASS: u32 = 1259;
pub(super) const PG_DATABASE: u32 = 1262;
/// The type `name`.
const NAME: u32 = 19;

/// The layout of `pg_attribute`, `pg_class` or `pg_database` (by oid) in a version from 12 to 18. `name_data_len` is
/// the cluster's size of a `name` in bytes.
///
/// # Errors
/// `Unsupported` if there is no such catalog.
pub fn bootstrap_layout(major_version: u32, catalog: u32, name_data_len: u32) -> Result<RowLayout> {
    let line = LAYOUTS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.splitn(5, ' ');
            let version: u32 = words.next()?.parse().ok()?;
            let _name = words.next()?;
            let oid: u32 = words.next()?.parse().ok()?;
            let _row_type = words.next()?;
            Some((version, oid, words.next()?))
        })
        .filter(|&(version, oid, _)| oid == catalog && version <= major_version)
        .max_by_key(|&(version, ..)| version);
    line.and_then(|(.., columns)| parse_columns(columns, name_data_len)).ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            format!("the layout of catalog {catalog} of PostgreSQL {major_version} is not known"),
        )
    })
}

fn parse_columns(columns: &str, name_data_len: u32) -> Option<RowLayout> {
    let attributes = columns
        .split(' ')
        .zip(1..)
        .map(|(column, number)| {
            let mut fields = column.split(':');
            let name = fields.next()?.to_owned();
            let type_oid = fields.next()?.parse().ok()?;
            let len = fields.next()?.parse().ok()?;
            let align = alignment(*fields.next()?.as_bytes().first()?)?;
            let flags = fields.next()?.as_bytes();
            Some(Attribute {
                name,
                number,
                type_oid,
                typmod: -1,
                len: if type_oid == NAME { i16::try_from(name_data_len).ok()? } else { len },
                by_val: flags.first() == Some(&b't'),
                align,
                storage: if len == -1 { b'x' } else { b'p' },
                not_null: flags.get(1) == Some(&b't'),
                dropped: false,
                dimensions: 0,
                generated: 0,
                missing: None,
            })
        })
        .collect::<Option<_>>()?;
    Some(RowLayout { attributes })
}

/// Bytes of a `typalign` letter.
pub(super) fn alignment(letter: u8) -> Option<u8> {
    Some(match letter {
        b'c' => 1,
        b's' => 2,
        b'i' => 4,
        b'd' => 8,
        _ => return None,
    })
}

/// Checks that `pg_attribute` describes a catalog as it was read. A fork of PostgreSQL with more columns, or a
/// catalog of another version, must not be decoded by guess.
pub(super) fn check_layout(catalog: &str, assumed: &RowLayout, described: &RowLayout) -> Result<()> {
    let same = |a: &Attribute, d: &Attribute| {
        (&a.name, a.type_oid, a.len, a.align, a.by_val) == (&d.name, d.type_oid, d.len, d.align, d.by_val)
    };
    let difference = assumed
        .attributes
        .iter()
        .zip(&described.attributes)
        .find(|(a, d)| !same(a, d))
        .map(|(a, d)| format!("column {} is {:?} where {:?} is expected", a.number, d.name, a.name))
        .or_else(|| {
            let (a, d) = (assumed.attributes.len(), described.attributes.len());
            (a != d).then(|| format!("it has {d} columns where {a} are expected"))
        });
    match difference {
        None => Ok(()),
        Some(what) => Err(Error::new(ErrorKind::Unsupported, format!("{catalog} is not PostgreSQL's: {what}"))
            .with_hint("clusters of other products built on PostgreSQL are not read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(version: u32, catalog: u32) -> RowLayout {
        bootstrap_layout(version, catalog, 64).expect("a known layout")
    }

    /// Byte offset of a column of fixed length whose predecessors are fixed and not null.
    fn offset(layout: &RowLayout, name: &str) -> usize {
        let mut at = 0usize;
        for attribute in &layout.attributes {
            assert!(attribute.len > 0, "{name} lies behind a varlena");
            at = at.next_multiple_of(usize::from(attribute.align));
            if attribute.name == name {
                return at;
            }
            at += attribute.len as usize;
        }
        panic!("no column {name}");
    }

    #[test]
    fn column_counts_of_all_versions() {
        let counts = |catalog| (12..=18).map(|v| layout(v, catalog).attributes.len()).collect::<Vec<_>>();
        assert_eq!(counts(PG_ATTRIBUTE), [25, 25, 26, 26, 26, 26, 25]);
        assert_eq!(counts(PG_CLASS), [33, 33, 33, 33, 33, 33, 34]);
        assert_eq!(counts(PG_DATABASE), [14, 14, 14, 16, 17, 18, 18]);
        for version in 12..=18 {
            for catalog in [PG_ATTRIBUTE, PG_CLASS, PG_DATABASE] {
                for (attribute, number) in layout(version, catalog).attributes.iter().zip(1..) {
                    assert_eq!(attribute.number, number);
                    assert!([1, 2, 4, 8].contains(&attribute.align));
                }
            }
        }
    }

    #[test]
    fn columns_lie_where_the_versions_put_them() {
        let attalign = |version| offset(&layout(version, PG_ATTRIBUTE), "attalign");
        assert_eq!([12, 13, 14, 15, 16, 17, 18].map(attalign), [94, 94, 93, 93, 87, 87, 83]);
        assert_eq!(offset(&layout(17, PG_CLASS), "relkind"), 115);
        assert_eq!(offset(&layout(18, PG_CLASS), "relkind"), 119);
        assert_eq!(offset(&layout(15, PG_DATABASE), "dattablespace"), 92);
    }

    #[test]
    fn longer_names_move_what_follows() {
        let layout = bootstrap_layout(15, PG_CLASS, 128).expect("a known layout");
        assert_eq!(layout.attributes[1].len, 128);
        assert_eq!(offset(&layout, "relkind"), 115 + 64);
        assert!(bootstrap_layout(15, PG_CLASS, 100_000).is_err());
        assert!(bootstrap_layout(15, 4711, 64).is_err());
        assert!(bootstrap_layout(11, PG_CLASS, 64).is_err());
    }

    #[test]
    fn a_catalog_with_another_column_is_refused() {
        let (old, new) = (layout(17, PG_CLASS), layout(18, PG_CLASS));
        assert!(check_layout("pg_class", &old, &old).is_ok());
        let error = check_layout("pg_class", &old, &new).expect_err("must differ");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("\"relallfrozen\""), "{error}");
        let mut more = old.clone();
        more.attributes.push(new.attributes[0].clone());
        assert!(check_layout("pg_class", &old, &more).expect_err("must differ").to_string().contains("34 columns"));
    }
}
