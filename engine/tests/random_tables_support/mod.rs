//! The SQL of tables at random.

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}

/// The users' types that the tables take, and extensions where the server has them.
pub(crate) const PRELUDE: &str = r#"
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy', 'it''s "odd", \ {}');
CREATE DOMAIN posint AS int4 CHECK (VALUE > 0);
CREATE DOMAIN words AS text[];
CREATE TYPE comp AS (a int4, b text, c numeric, d date[]);
CREATE TYPE nest AS (x comp, y comp[], z "char");
CREATE TYPE floatrange AS RANGE (subtype = float8);
DO $$ DECLARE e text; BEGIN
  FOREACH e IN ARRAY ARRAY['citext', 'hstore', 'ltree', 'cube', 'seg'] LOOP
    BEGIN EXECUTE 'CREATE EXTENSION ' || e; EXCEPTION WHEN OTHERS THEN NULL; END;
  END LOOP;
END $$;
"#;

/// A type, and the expression of its values: `i` is the row, `@h` an integer of it, `@m` 32 hexadecimal digits.
pub(crate) struct Type {
    pub(crate) name: &'static str,
    value: &'static str,
}

const TYPES: &[(&str, &str)] = &[
    ("bool", "@h % 2 = 0"),
    ("int2", "(@h % 32768)::int2"),
    ("int4", "@h"),
    ("int8", "@h::int8 * 4000000000 + i"),
    ("oid", "abs(@h::int8)::oid"),
    ("xid", "(abs(@h::int8))::text::xid"),
    ("cid", "(abs(@h::int8))::text::cid"),
    ("tid", "format('(%s,%s)', abs(@h::int8), i % 60000)::tid"),
    ("pg_lsn", "format('%s/%s', to_hex(abs(@h::int8)), to_hex(i))::pg_lsn"),
    ("float4", "CASE WHEN @h % 31 = 0 THEN '-Infinity'::float4 ELSE (@h / 1000.0)::float4 END"),
    ("float8", "CASE @h % 19 WHEN 0 THEN 'NaN'::float8 WHEN 1 THEN '-0' WHEN 2 THEN 1e-300 ELSE @h::float8 / 7 END"),
    ("numeric", "CASE WHEN @h % 23 = 0 THEN 'NaN'::numeric ELSE @h::numeric * power(10::numeric, @h % 40) / 7 END"),
    ("numeric(12,3)", "(@h % 100000000)::numeric / 1000"),
    ("numeric(60,20)", "@h::numeric * 1e25 / 3"),
    ("money", "(@h % 1000000)::money"),
    ("text", "CASE @h % 5 WHEN 0 THEN '' WHEN 1 THEN E'tab\\t\\\\ new\\nline é' ELSE repeat(@m, abs(@h % 6)) END"),
    ("varchar(40)", "substr(@m || 'äß€', 1 + abs(@h % 40))"),
    ("char(12)", "substr(@m, 1, abs(@h % 12))"),
    ("\"char\"", "substr(@m, 1, 1)::\"char\""),
    ("name", "@m::name"),
    ("bytea", "decode(repeat(@m, abs(@h % 5)), 'hex')"),
    ("date", "CASE WHEN @h % 29 = 0 THEN 'infinity'::date ELSE '2000-01-01'::date + @h % 700000 END"),
    ("time", "'00:00'::time + make_interval(secs => abs(@h % 86400) + 0.25)"),
    (
        "timetz",
        "format('12:%s:00%s', lpad(abs(@h % 60)::text, 2, '0'), CASE WHEN @h > 0 THEN '+05:30' ELSE '-03' END)::timetz",
    ),
    (
        "timestamp",
        "CASE WHEN @h % 29 = 0 THEN '-infinity'::timestamp ELSE '1999-12-31'::timestamp + make_interval(secs => @h::float8 * 10) END",
    ),
    ("timestamptz", "'2020-02-29'::timestamptz + make_interval(days => @h % 900000, secs => 0.000001)"),
    ("interval", "make_interval(months => @h % 1000, days => @h % 77, secs => @h / 100.0)"),
    ("uuid", "@m::uuid"),
    ("json", "json_build_object('k', @h, 'a \"b\"', @m)"),
    ("jsonb", "jsonb_build_object('k', @h, 'list', jsonb_build_array(@m, NULL, i / 3.0, true), @m, '{}'::jsonb)"),
    ("jsonpath", "('$.a' || abs(@h::int8) || ' ? (@.b > 1)')::jsonpath"),
    ("xml", "('<a b=\"' || i || '\">' || @m || '</a>')::xml"),
    (
        "inet",
        "CASE WHEN @h % 3 = 0 THEN '2001:db8::'::inet + abs(@h::int8) ELSE '10.0.0.0/8'::inet + abs(@h % 16777216) END",
    ),
    ("cidr", "set_masklen('192.168.0.0/16'::cidr, 16 + abs(@h % 3) - abs(@h % 3))"),
    ("macaddr", "substr(@m, 1, 12)::macaddr"),
    ("macaddr8", "substr(@m, 1, 16)::macaddr8"),
    ("bit(11)", "@h::bit(32)::bit(11)"),
    ("varbit", "substring(@h::bit(32)::varbit FROM 1 FOR abs(@h % 32))"),
    ("point", "point(@h / 4.0, i)"),
    ("lseg", "lseg(point(@h, 1), point(2, i))"),
    ("box", "box(point(@h, 1), point(2, i))"),
    ("path", "format('[(%s,1),(2,%s)]', @h, i)::path"),
    ("polygon", "format('((%s,1),(2,%s),(0,0))', @h, i)::polygon"),
    ("circle", "circle(point(@h, 1), abs(@h % 100))"),
    ("line", "format('{1,%s,3}', @h)::line"),
    ("tsvector", "to_tsvector('simple', @m || ' ' || i || ' a''b ' || @m)"),
    ("tsquery", "format('a%s & !b | ''c d'':*A', abs(@h::int8))::tsquery"),
    ("int4range", "int4range(@h % 1000, @h % 1000 + 50)"),
    ("int8range", "CASE WHEN @h % 5 = 0 THEN 'empty'::int8range ELSE int8range(@h, NULL) END"),
    ("numrange", "numrange(@h::numeric / 8, NULL, '(]')"),
    ("daterange", "daterange('2000-01-01'::date + @h % 1000, 'infinity')"),
    ("tsrange", "tsrange('2000-01-01'::timestamp, '2001-01-01'::timestamp + make_interval(secs => abs(@h::int8)))"),
    ("floatrange", "floatrange(-abs(@h / 3.0::float8), abs(@h::float8), '[]')"),
    ("mood", "(enum_range(NULL::mood))[1 + abs(@h % 4)]"),
    ("posint", "1 + abs(@h % 1000)"),
    ("words", "ARRAY[@m, NULL, 'a b', '']"),
    ("comp", "ROW(@h, @m || '\"', @h / 3.0, ARRAY['2000-01-01'::date, NULL])::comp"),
    ("nest", "ROW(ROW(@h, NULL, 1, '{}')::comp, ARRAY[ROW(1, @m, NULL, NULL)::comp, NULL], 'x')::nest"),
    (
        "int4[]",
        "CASE @h % 4 WHEN 0 THEN '{}'::int4[] WHEN 1 THEN ARRAY[[@h, i::int4], [NULL, 4]] WHEN 2 THEN '[3:4]={1,2}' ELSE ARRAY[@h, NULL, i::int4] END",
    ),
    ("text[]", "string_to_array(repeat(@m || ',', abs(@h % 9)), ',')"),
    ("numeric[]", "ARRAY[@h::numeric / 3, 'NaN', NULL]"),
    ("mood[]", "ARRAY['sad', NULL, 'so so']::mood[]"),
    ("comp[]", "ARRAY[ROW(@h, 'x', 2, NULL)::comp, NULL]"),
    ("timestamptz[]", "ARRAY['infinity'::timestamptz, '2020-01-01'::timestamptz + make_interval(secs => @h)]"),
    ("box[]", "ARRAY[box(point(@h, 1), point(2, i)), NULL]"),
    ("int4range[]", "ARRAY[int4range(1, 5), NULL, int4range(NULL, @h)]"),
    ("int2vector", "format('%s 2 %s', @h % 1000, i % 100)::int2vector"),
    ("oidvector", "format('%s 2', abs(@h::int8))::oidvector"),
    ("regclass", "CASE WHEN @h % 2 = 0 THEN 'pg_class'::regclass ELSE abs(@h::int8)::oid::regclass END"),
    ("regtype", "(ARRAY['int4', 'text[]', 'mood', 'timestamptz']::regtype[])[1 + abs(@h % 4)]"),
    // Toasted: compressible, and not.
    ("text STORAGE MAIN", "repeat(@m, abs(@h % 300))"),
    ("text STORAGE EXTERNAL", "repeat(@m, abs(@h % 150))"),
    (
        "bytea STORAGE EXTENDED",
        "(SELECT decode(string_agg(md5(g || @m), ''), 'hex') FROM generate_series(1, abs(@h % 250)) g)",
    ),
];

/// Types of 13, 14, 16 and later, and of extensions.
const NEWER: &[(u32, &str, &str)] = &[
    (13, "xid8", "abs(@h::int8)::text::xid8"),
    (13, "pg_snapshot", "format('%s:%s:%s', 5, 9 + abs(@h % 100), 7)::pg_snapshot"),
    (13, "regcollation", "'\"C\"'::regcollation"),
    (14, "int4multirange", "int4multirange(int4range(@h % 1000, @h % 1000 + 5), int4range(5000, 6000 + abs(@h % 99)))"),
    (14, "datemultirange", "datemultirange(daterange('2000-01-01'::date, '2000-01-02'::date + abs(@h % 99)))"),
];
const OF_EXTENSIONS: &[(&str, &str, &str)] = &[
    ("citext", "citext", "(@m || 'MiXed')::citext"),
    ("hstore", "hstore", "hstore(ARRAY['a', @m, 'q\"\\', 'z'], ARRAY[i::text, NULL, '', @m])"),
    ("hstore", "hstore[]", "ARRAY[hstore('k', @m), NULL]"),
    ("ltree", "ltree", "('a.' || @m || '.c' || i)::ltree"),
    ("cube", "cube", "CASE WHEN @h % 2 = 0 THEN cube(ARRAY[@h, 1.5, i]) ELSE cube(ARRAY[1, 2.5], ARRAY[@h, 0.1]) END"),
];

/// All types of a server of this version and with these extensions.
pub(crate) fn types_of(major: u32, extensions: &str) -> Vec<Type> {
    let all = TYPES.iter().map(|&(name, value)| Type { name, value });
    let newer = NEWER.iter().filter(|t| t.0 <= major).map(|&(_, name, value)| Type { name, value });
    let has = |extension: &str| extensions.lines().any(|line| line == extension);
    let foreign = OF_EXTENSIONS.iter().filter(|t| has(t.0)).map(|&(_, name, value)| Type { name, value });
    all.chain(newer).chain(foreign).collect()
}

/// A table: how it is made, and the types that it has in the end.
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) sql: String,
    pub(crate) types: Vec<&'static str>,
}

struct Maker<'a> {
    random: &'a mut Random,
    types: &'a [Type],
    name: String,
    sql: String,
    /// Name, type and share of NULLs in percent of the columns that are there.
    columns: Vec<(String, usize, u64)>,
    next_column: usize,
    next_row: u64,
    large: bool,
}

impl Recipe {
    pub(crate) fn new(random: &mut Random, types: &[Type], number: usize, large: bool) -> Self {
        let name = format!("random_{number}");
        let mut maker =
            Maker { random, types, name, sql: String::new(), columns: Vec::new(), next_column: 0, next_row: 1, large };
        maker.create(number);
        for _ in 0..maker.random.below(8) {
            maker.change();
        }
        maker.insert();
        if maker.random.below(3) == 0 {
            // Hint bits.
            maker.line(&format!("SELECT count(*) FROM {}", maker.name));
        }
        let types = maker.columns.iter().map(|(_, index, _)| types[*index].name).collect();
        Self { name: maker.name, sql: maker.sql, types }
    }
}

impl Maker<'_> {
    fn line(&mut self, statement: &str) {
        self.sql.push_str(statement);
        self.sql.push_str(";\n");
    }

    /// A column of a type; its declaration and, apart, its storage.
    fn column(&mut self, index: usize) -> (String, Option<String>) {
        let name = format!("c{}", self.next_column);
        self.next_column += 1;
        let nulls = *self.random.pick(&[0, 0, 5, 30, 90]);
        let (type_name, storage) = match self.types[index].name.split_once(" STORAGE ") {
            Some((type_name, storage)) => (type_name, Some(storage)),
            None => (self.types[index].name, None),
        };
        let storage = storage.map(|s| format!("ALTER TABLE {} ALTER {name} SET STORAGE {s}", self.name));
        let declaration = format!("{name} {type_name}");
        self.columns.push((name, index, nulls));
        (declaration, storage)
    }

    fn create(&mut self, number: usize) {
        let mut indexes = vec![number % self.types.len()];
        let more = self.random.below(12);
        indexes.extend((0..more).map(|_| self.random.below(self.types.len() as u64) as usize));
        let (declarations, storages): (Vec<_>, Vec<_>) = indexes.into_iter().map(|index| self.column(index)).unzip();
        let with = match self.random.below(4) {
            0 => " WITH (fillfactor = 40)",
            1 => " WITH (toast_tuple_target = 256)",
            _ => "",
        };
        let statement = format!("CREATE TABLE {} (i int8, {}){with}", self.name, declarations.join(", "));
        self.line(&statement);
        storages.into_iter().flatten().for_each(|storage| self.line(&storage));
        self.insert();
    }

    /// The expression of a column's value in row `i`.
    fn value(&mut self, column: usize) -> String {
        let (_, index, nulls) = &self.columns[column];
        let (index, nulls) = (*index, *nulls);
        let salt = self.random.below(1_000_000_000);
        let hash = format!("hashint8(i * 31 + {salt})");
        let value = self.types[index].value.replace("@h", &hash).replace("@m", &format!("md5(i || '-{salt}')"));
        match nulls {
            0 => value,
            _ => format!("CASE WHEN abs(hashint8(i + {salt}) % 100) < {nulls} THEN NULL ELSE {value} END"),
        }
    }

    fn insert_statement(&mut self, rows: u64) -> String {
        let values: Vec<String> = (0..self.columns.len()).map(|column| self.value(column)).collect();
        let names: Vec<&str> = self.columns.iter().map(|(name, ..)| name.as_str()).collect();
        let names: String = names.iter().map(|name| format!(", {name}")).collect();
        let values: String = values.iter().map(|value| format!(", {value}")).collect();
        let first = self.next_row;
        self.next_row += rows;
        let last = self.next_row - 1;
        format!("INSERT INTO {} (i{names}) SELECT i{values} FROM generate_series({first}, {last}::int8) i", self.name)
    }

    fn insert(&mut self) {
        let rows = if self.large { 100 + self.random.below(500) } else { 20 + self.random.below(80) };
        let statement = self.insert_statement(rows);
        self.line(&statement);
    }

    fn update_statement(&mut self) -> String {
        let modulus = 2 + self.random.below(9);
        if self.columns.is_empty() {
            return format!("UPDATE {} SET i = i WHERE i % {modulus} = 0", self.name);
        }
        let column = self.random.below(self.columns.len() as u64) as usize;
        let value = self.value(column);
        format!("UPDATE {} SET {} = {value} WHERE i % {modulus} = 0", self.name, self.columns[column].0)
    }

    fn delete_statement(&mut self) -> String {
        let modulus = 5 + self.random.below(20);
        format!("DELETE FROM {} WHERE i % {modulus} = 1", self.name)
    }

    /// One change of the table.
    fn change(&mut self) {
        match self.random.below(12) {
            0 => self.insert(),
            1 => {
                let statement = self.update_statement();
                self.line(&statement);
            }
            2 => {
                let statement = self.delete_statement();
                self.line(&statement);
            }
            3 => {
                let statements = [self.update_statement(), self.delete_statement(), self.insert_statement(20)];
                self.line(&format!("BEGIN;\n{};\nROLLBACK", statements.join(";\n")));
            }
            4 => {
                let [a, b, c] = [self.insert_statement(15), self.update_statement(), self.insert_statement(9)];
                self.line(&format!(
                    "BEGIN;\nSAVEPOINT a;\n{a};\nSAVEPOINT b;\n{b};\nROLLBACK TO b;\n{c};\nRELEASE a;\nCOMMIT"
                ));
            }
            5 => {
                let [a, b] = [self.insert_statement(15), self.update_statement()];
                self.line(&format!("BEGIN;\nSAVEPOINT a;\n{a};\nRELEASE a;\n{b};\nROLLBACK"));
            }
            6 => {
                let index = self.random.below(self.types.len() as u64) as usize;
                let (declaration, storage) = self.column(index);
                let default = if self.random.below(2) == 0 { self.default(index) } else { String::new() };
                let statement = format!("ALTER TABLE {} ADD COLUMN {declaration}{default}", self.name);
                self.line(&statement);
                if let Some(storage) = storage {
                    self.line(&storage);
                }
            }
            7 if self.columns.len() > 1 => {
                let column = self.random.below(self.columns.len() as u64) as usize;
                let (name, ..) = self.columns.remove(column);
                let statement = format!("ALTER TABLE {} DROP COLUMN {name}", self.name);
                self.line(&statement);
            }
            8 => self.line(&format!("VACUUM {}", self.name)),
            9 => self.line(&format!("VACUUM (FREEZE) {}", self.name)),
            10 if self.random.below(3) == 0 => self.line(&format!("VACUUM FULL {}", self.name)),
            _ => {
                // Rows that were locked, by a transaction that ended one way or the other.
                let end = if self.random.below(2) == 0 { "COMMIT" } else { "ROLLBACK" };
                let name = &self.name;
                self.line(&format!(
                    "BEGIN;\nSELECT count(*) FROM (SELECT FROM {name} WHERE i % 3 = 0 FOR SHARE) s;\n{end}"
                ));
            }
        }
    }

    /// A constant default, which older rows then get out of the catalog.
    fn default(&mut self, index: usize) -> String {
        let salt = self.random.below(1000);
        let value = self.types[index].value.replace("@h", &format!("{salt}")).replace("@m", &format!("md5('{salt}')"));
        // Subqueries and the row number have no place in a default.
        if value.contains("SELECT")
            || value.contains('i') && value.split(|c: char| !c.is_alphanumeric()).any(|w| w == "i")
        {
            return String::new();
        }
        format!(" DEFAULT {value}")
    }
}
