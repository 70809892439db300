//! `pg_filenode.map`: the files of the catalogs whose `pg_class.relfilenode` is 0, because they are needed to read
//! `pg_class` itself, or are shared by all databases.
//!
//! The layout is `RelMapFile` of `src/backend/utils/cache/relmapper.c`.

use super::bytes::{read_small_file, u32_at};
use crate::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// `RELMAPPER_FILEMAGIC`.
const MAGIC: u32 = 0x0059_2717;
/// Of 64 slots, 16 and later; the form of 15 and before has 62 and a pad word at the end (512 bytes).
const LARGE_SIZE: usize = 524;
const SMALL_SIZE: usize = 512;

/// The mapped relations of one database, or the shared ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilenodeMap {
    path: PathBuf,
    mappings: Vec<(u32, u32)>,
}

impl FilenodeMap {
    /// Reads `pg_filenode.map` in `directory` (`global`, or the folder of a database).
    ///
    /// # Errors
    /// `Corrupt` if it is missing, short, or its magic, CRC or count is wrong; `Io`.
    pub fn read(directory: &Path, major_version: u32) -> Result<Self> {
        let path = directory.join("pg_filenode.map");
        let bytes = read_small_file(&path, LARGE_SIZE as u64 + 1)?
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "there is no such file").with_path(&path))?;
        match Self::parse(&bytes, major_version) {
            Ok(map) => Ok(Self { path, ..map }),
            Err(error) => Err(error
                .with_path(path)
                .with_hint("without it no relation can be found by name; restore the file from a backup")),
        }
    }

    /// Checks and takes apart the contents of the file.
    ///
    /// # Errors
    /// `Corrupt` as [`read`](Self::read), without the path.
    pub fn parse(bytes: &[u8], major_version: u32) -> Result<Self> {
        let mappings = Self::mappings_of(bytes, major_version).map_err(|what| Error::new(ErrorKind::Corrupt, what))?;
        Ok(Self { path: PathBuf::new(), mappings })
    }

    fn mappings_of(bytes: &[u8], major_version: u32) -> Result<Vec<(u32, u32)>, String> {
        let (slots, size) = if major_version >= 16 { (64, LARGE_SIZE) } else { (62, SMALL_SIZE) };
        let crc_at = 8 + slots * 8;
        let word = |at| u32_at(bytes, at).ok_or_else(|| format!("is truncated: {} of {size} bytes", bytes.len()));
        let magic = word(0)?;
        if magic != MAGIC {
            return Err(format!("magic number is {magic:#x}, not {MAGIC:#x}"));
        }
        let stored = word(crc_at)?;
        let computed = crc32c::crc32c(&bytes[..crc_at]);
        if stored != computed {
            return Err(format!("CRC is {stored:08X}, computed {computed:08X}: the file is damaged"));
        }
        let count = word(4)? as usize;
        if count > slots {
            return Err(format!("{count} mappings are more than its {slots} slots"));
        }
        (0..count).map(|slot| Ok((word(8 + slot * 8)?, word(12 + slot * 8)?))).collect()
    }

    /// The file number of the mapped relation `oid`.
    ///
    /// # Errors
    /// `Corrupt` if the map does not have it.
    pub fn filenode(&self, oid: u32) -> Result<u32> {
        self.mappings.iter().find(|&&(mapped, _)| mapped == oid).map(|&(_, filenode)| filenode).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("has no file number of relation {oid}")).with_path(&self.path)
        })
    }

    /// All pairs of relation and file number.
    pub fn mappings(&self) -> &[(u32, u32)] {
        &self.mappings
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The bytes of a map as a server of that version writes them.
    pub(crate) fn map_bytes(major_version: u32, mappings: &[(u32, u32)]) -> Vec<u8> {
        let (slots, size) = if major_version >= 16 { (64, 524) } else { (62, 512) };
        let mut bytes = vec![0; size];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&(mappings.len() as u32).to_le_bytes());
        for (slot, (oid, filenode)) in mappings.iter().enumerate() {
            bytes[8 + slot * 8..12 + slot * 8].copy_from_slice(&oid.to_le_bytes());
            bytes[12 + slot * 8..16 + slot * 8].copy_from_slice(&filenode.to_le_bytes());
        }
        reseal(&mut bytes, slots);
        bytes
    }

    fn reseal(bytes: &mut [u8], slots: usize) {
        let crc_at = 8 + slots * 8;
        let crc = crc32c::crc32c(&bytes[..crc_at]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    }

    fn read(bytes: &[u8], major_version: u32) -> Result<FilenodeMap> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("pg_filenode.map"), bytes).expect("a file");
        FilenodeMap::read(folder.path(), major_version)
    }

    #[test]
    fn both_forms_are_read() {
        for (version, slots) in [(12, 62), (15, 62), (16, 64), (18, 64)] {
            let mappings: Vec<_> = (0..slots).map(|i| (1000 + i, 3_000_000_000 + i)).collect();
            let map = read(&map_bytes(version, &mappings), version).expect("a good map");
            assert_eq!(map.mappings(), mappings);
            assert_eq!(map.filenode(1000 + slots - 1).expect("mapped"), 3_000_000_000 + slots - 1);
            let error = map.filenode(1).expect_err("not mapped");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn the_form_of_another_version_is_refused() {
        assert!(read(&map_bytes(15, &[(1259, 5)]), 16).is_err());
        assert!(read(&map_bytes(16, &[(1259, 5)]), 15).is_err());
    }

    #[test]
    fn h14_damage_is_noticed() {
        let good = map_bytes(15, &[(1259, 16_400), (1249, 1249)]);
        for at in 0..508 {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            assert_eq!(read(&bytes, 15).expect_err("damaged").kind(), ErrorKind::Corrupt, "byte {at}");
        }
        for length in [0, 3, 8, 100, 507] {
            assert_eq!(read(&good[..length], 15).expect_err("short").kind(), ErrorKind::Corrupt);
        }
        let mut bytes = good;
        bytes[4..8].copy_from_slice(&63u32.to_le_bytes());
        reseal(&mut bytes, 62);
        assert!(read(&bytes, 15).expect_err("too many").to_string().contains("63 mappings"));
        let nowhere = FilenodeMap::read(Path::new("/nonexistent"), 15).expect_err("no file");
        assert_eq!(nowhere.kind(), ErrorKind::Corrupt);
    }
}
