//! The names of files in the folder of a database.

/// A fork of a relation, by its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fork {
    /// The rows; no suffix.
    Main,
    /// `_fsm`: the free space map.
    FreeSpaceMap,
    /// `_vm`: the visibility map.
    VisibilityMap,
    /// `_init`: what an unlogged relation is reset to.
    Init,
}

/// What a file in the folder of a database is. The grammar is strict: what does not match to the last byte is not a
/// relation, and must not be read as pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileName {
    /// A segment of a fork of a relation.
    Relation {
        /// The file number (`relfilenode`).
        filenode: u32,
        /// The fork.
        fork: Fork,
        /// The segment: 0 has no suffix.
        segment: u32,
    },
    /// The same of a temporary relation of a session.
    Temporary {
        /// The session's number.
        backend: u32,
        /// The file number.
        filenode: u32,
        /// The fork.
        fork: Fork,
        /// The segment.
        segment: u32,
    },
    /// `PG_VERSION`, `pg_filenode.map`, `pg_internal.init`, and whatever else.
    Other,
}

impl FileName {
    /// Takes a file name apart.
    pub fn parse(name: &str) -> Self {
        let parsed = match name.strip_prefix('t') {
            Some(rest) => rest.split_once('_').and_then(|(backend, rest)| {
                let (filenode, fork, segment) = relation(rest)?;
                Some(Self::Temporary { backend: number(backend)?, filenode, fork, segment })
            }),
            None => relation(name).map(|(filenode, fork, segment)| Self::Relation { filenode, fork, segment }),
        };
        parsed.unwrap_or(Self::Other)
    }
}

fn relation(name: &str) -> Option<(u32, Fork, u32)> {
    let (name, segment) = match name.split_once('.') {
        // The server never writes ".0".
        Some((name, segment)) => (name, number(segment).filter(|&s| s > 0)?),
        None => (name, 0),
    };
    let (filenode, fork) = match name.split_once('_') {
        Some((filenode, "fsm")) => (filenode, Fork::FreeSpaceMap),
        Some((filenode, "vm")) => (filenode, Fork::VisibilityMap),
        Some((filenode, "init")) => (filenode, Fork::Init),
        Some(_) => return None,
        None => (name, Fork::Main),
    };
    Some((number(filenode).filter(|&f| f > 0)?, fork, segment))
}

/// A number as the server prints it: digits only, no leading zero, 32 bits.
fn number(text: &str) -> Option<u32> {
    let canonical = text == "0" || (text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn relations() {
        let relation = |filenode, fork, segment| FileName::Relation { filenode, fork, segment };
        for (name, expected) in [
            ("16384", relation(16384, Fork::Main, 0)),
            ("4294967295", relation(u32::MAX, Fork::Main, 0)),
            ("16384.1", relation(16384, Fork::Main, 1)),
            ("16384.131071", relation(16384, Fork::Main, 131_071)),
            ("16384_fsm", relation(16384, Fork::FreeSpaceMap, 0)),
            ("16384_vm.2", relation(16384, Fork::VisibilityMap, 2)),
            ("16384_init", relation(16384, Fork::Init, 0)),
        ] {
            assert_eq!(FileName::parse(name), expected, "{name}");
        }
        assert_eq!(
            FileName::parse("t3_16390_vm.1"),
            FileName::Temporary { backend: 3, filenode: 16390, fork: Fork::VisibilityMap, segment: 1 }
        );
    }

    #[test]
    fn h11_everything_else() {
        for name in [
            "",
            "0",
            "016384",
            "+16384",
            "-1",
            "4294967296",
            "16384.",
            "16384.0",
            "16384.01",
            "16384.1.2",
            "16384.a",
            "16384.4294967296",
            "16384_",
            "16384_foo",
            "16384_fsm_vm",
            "16384_FSM",
            "16384_fsm1",
            "_fsm",
            ".1",
            "16384 ",
            "16384~",
            "t",
            "t_",
            "t3",
            "t3_",
            "t_16384",
            "t03_16384",
            "t3_x",
            "t3_16384_",
            "T3_16384",
            "PG_VERSION",
            "pg_filenode.map",
            "pg_internal.init",
            "pg_internal.init.4711",
            "pg_tde.map",
            "१६३८४",
            "16384_init.x",
        ] {
            assert_eq!(FileName::parse(name), FileName::Other, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_recognised_is_written_the_same_way(name in "t?[0-9]{0,3}_?[0-9]{1,11}(_(fsm|vm|init|x))?(\\.[0-9]{0,3})?") {
            let suffix = |fork, segment| {
                let fork = match fork {
                    Fork::Main => "",
                    Fork::FreeSpaceMap => "_fsm",
                    Fork::VisibilityMap => "_vm",
                    Fork::Init => "_init",
                };
                if segment == 0 { fork.to_owned() } else { format!("{fork}.{segment}") }
            };
            match FileName::parse(&name) {
                FileName::Relation { filenode, fork, segment } => {
                    prop_assert_eq!(format!("{filenode}{}", suffix(fork, segment)), name);
                }
                FileName::Temporary { backend, filenode, fork, segment } => {
                    prop_assert_eq!(format!("t{backend}_{filenode}{}", suffix(fork, segment)), name);
                }
                FileName::Other => {}
            }
        }

        #[test]
        fn no_name_panics(name in ".{0,30}") {
            FileName::parse(&name);
        }
    }
}
