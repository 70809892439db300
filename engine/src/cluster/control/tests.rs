use super::*;

/// The bytes of a control file as a server writes them.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    crc_at: usize,
}

impl Writer {
    /// A cleanly shut down cluster with checksums.
    pub(crate) fn new(control_version: u32, catalog_version: u32) -> Self {
        let crc_at = if control_version == 1800 { 292 } else { 288 };
        let mut writer = Self { bytes: vec![0; FILE_SIZE as usize], crc_at };
        writer.u64(0, 7_000_000_000_000_000_001).u32(8, control_version).u32(12, catalog_version).u32(16, 1);
        writer.u64(24, 1_700_000_000).u64(32, 0x0200_0028).u64(40, 0x0200_0020).u32(48, 1);
        writer.u64(64, (1 << 32) + 65).u32(72, 24_576).u32(76, 35).u32(80, 75).u32(84, 716).u32(88, 1);
        writer.u32(92, 2).u32(96, 5).u32(120, 700);
        writer.u32(204, 8).u64(208, FLOAT_FORMAT.to_bits()).u32(216, 8192).u32(220, 131_072);
        writer.u32(232, 64).u32(240, 1996).u32(244, 2048).u32(252, 1);
        writer.bytes[if control_version == 1201 { 249 } else { 248 }] = 1;
        writer.bytes[256] = 1;
        writer
    }

    pub(crate) fn release(major: u32) -> Self {
        let &(_, control, catalog) = RELEASES.iter().find(|r| r.0 == major).expect("a release");
        Self::new(control, catalog)
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// The file with its CRC.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.bytes[..self.crc_at]);
        self.u32(self.crc_at, crc);
        self.bytes.clone()
    }
}

fn error_of(bytes: &[u8]) -> (ErrorKind, String) {
    let error = ControlFile::parse(bytes).expect_err("must be refused");
    (error.kind(), error.to_string())
}

#[test]
fn every_release_is_read() {
    for (major, control_version, catalog_version) in RELEASES {
        let control = ControlFile::parse(&Writer::release(major).finish()).expect("a good file");
        assert_eq!(
            (control.major_version, control.control_version, control.catalog_version),
            (major, control_version, catalog_version)
        );
        assert_eq!(control.system_identifier, 7_000_000_000_000_000_001);
        assert_eq!(control.state, ClusterState::ShutDown);
        assert_eq!((control.next_xid, control.next_oid), ((1 << 32) + 65, 24_576));
        assert_eq!((control.next_multi, control.next_multi_offset), (35, 75));
        assert_eq!((control.oldest_xid, control.oldest_xid_database), (716, 1));
        assert_eq!((control.oldest_multi, control.oldest_multi_database), (2, 5));
        assert_eq!((control.block_size, control.blocks_per_segment), (8192, 131_072));
        assert_eq!((control.max_align, control.name_data_len, control.toast_max_chunk_size), (8, 64, 1996));
        assert_eq!(control.checksums, ChecksumState::On);
        assert!(control.float8_by_val && control.char_signed);
    }
}

#[test]
fn h1_other_block_sizes_are_read_and_impossible_ones_refused() {
    for (block_size, blocks_per_segment) in [(4096, 1), (16_384, 65_536), (32_768, 128), (1024, u32::MAX)] {
        let bytes = Writer::release(15).u32(216, block_size).u32(220, blocks_per_segment).u32(240, 996).finish();
        let control = ControlFile::parse(&bytes).expect("a good file");
        assert_eq!((control.block_size, control.blocks_per_segment), (block_size, blocks_per_segment));
    }
    for (at, value) in [(216, 0), (216, 8191), (216, 65_536), (220, 0), (232, 0), (240, 0), (240, 8192), (16, 7)] {
        let (kind, message) = error_of(&Writer::release(15).u32(at, value).finish());
        assert_eq!(kind, ErrorKind::ControlFile, "byte {at} = {value}: {message}");
    }
}

#[test]
fn every_flipped_bit_before_the_crc_is_noticed() {
    let good = Writer::release(18).finish();
    for at in 0..296 {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            assert!(ControlFile::parse(&bytes).is_err(), "byte {at} bit {bit}");
        }
    }
    let (kind, message) = error_of(&{
        let mut bytes = good.clone();
        bytes[70] ^= 1;
        bytes
    });
    assert_eq!(kind, ErrorKind::ControlFile);
    assert!(message.contains("CRC"), "{message}");
}

#[test]
fn truncated_files_are_refused() {
    let good = Writer::release(12).finish();
    for length in 0..292 {
        let (kind, message) = error_of(&good[..length]);
        assert_eq!(kind, ErrorKind::ControlFile, "{length}: {message}");
        assert!(message.contains("truncated"), "{message}");
    }
    assert!(ControlFile::parse(&good[..292]).is_ok());
}

#[test]
fn h30_other_versions_are_refused_by_name() {
    for (version, name) in
        [(942, "9.4 or 9.5"), (1002, "PostgreSQL 10"), (1100, "PostgreSQL 11"), (1900, "later than PostgreSQL 18")]
    {
        let (kind, message) = error_of(&Writer::new(version, 1).finish());
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(message.contains(name) && message.contains(&version.to_string()), "{message}");
    }
    let (kind, message) = error_of(&Writer::new(1300, 202_005_171).finish());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("catalog version 202005171"), "{message}");
    assert_eq!(error_of(&Writer::new(0xDEAD_BEEF, 1).finish()).0, ErrorKind::ControlFile);
}

#[test]
fn h29_foreign_machines_are_refused() {
    for version in [1201u32, 1300, 1700, 1800, 960] {
        let (kind, message) = error_of(&Writer::new(version.swap_bytes(), 1).finish());
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(message.contains("byte order") && message.contains(&version.to_string()), "{message}");
    }
    let (kind, message) = error_of(&Writer::release(16).u32(204, 4).finish());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("alignment 4"), "{message}");
    assert_eq!(error_of(&Writer::release(16).u64(208, 0).finish()).0, ErrorKind::Unsupported);
}

#[test]
fn states_have_the_names_of_pg_controldata() {
    let names = [
        "starting up",
        "shut down",
        "shut down in recovery",
        "shutting down",
        "in crash recovery",
        "in archive recovery",
        "in production",
    ];
    for (number, name) in (0..).zip(names) {
        let control = ControlFile::parse(&Writer::release(14).u32(16, number).finish()).expect("a good file");
        assert_eq!(control.state.as_str(), name);
        assert_eq!(control.state.is_clean(), name.starts_with("shut down"));
    }
}

#[test]
fn h7_checksum_versions() {
    let read = |version| ControlFile::parse(&Writer::release(17).u32(252, version).finish()).map(|c| c.checksums);
    assert_eq!(read(0).expect("off"), ChecksumState::Off);
    assert_eq!(read(1).expect("on"), ChecksumState::On);
    assert_eq!(read(2).expect("in progress"), ChecksumState::InProgress);
    assert_eq!(read(3).expect("in progress"), ChecksumState::InProgress);
    assert_eq!(read(99).expect_err("unknown").kind(), ErrorKind::Unsupported);
}
