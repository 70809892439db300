//! `global/pg_control`: what the cluster was built with and where its counters stood at the last checkpoint.
//!
//! The layout is `ControlFileData` of `src/include/catalog/pg_control.h`. All versions that are read here agree up to
//! the checksum version at byte 252; what follows, and with it the place of the CRC, differs.

use super::bytes::{array_at, read_small_file, u32_at, u64_at};
use crate::{Error, ErrorKind, Result};
use std::{fmt, path::Path};

/// `PG_CONTROL_FILE_SIZE`.
const FILE_SIZE: u64 = 8192;
/// `FLOATFORMAT_VALUE`: whoever wrote the file and whoever reads it agree on floating point if this reads the same.
const FLOAT_FORMAT: f64 = 1_234_567.0;

/// One layout of the control file.
struct Format {
    version: u32,
    /// Byte of the CRC; it covers all bytes before.
    crc_at: usize,
}

/// 17 changed what the WAL can hold, not the layout; 18 put `default_char_signedness` before the nonce.
const FORMATS: [Format; 4] = [
    Format { version: 1201, crc_at: 288 },
    Format { version: 1300, crc_at: 288 },
    Format { version: 1700, crc_at: 288 },
    Format { version: 1800, crc_at: 292 },
];

/// Major version, `pg_control` version and catalog version (`CATALOG_VERSION_NO`) of every release that is read.
const RELEASES: [(u32, u32, u32); 7] = [
    (12, 1201, 201_909_212),
    (13, 1300, 202_007_201),
    (14, 1300, 202_107_181),
    (15, 1300, 202_209_061),
    (16, 1300, 202_307_071),
    (17, 1700, 202_406_281),
    (18, 1800, 202_506_291),
];

/// `pg_control` versions of releases that are not read.
const OTHER_VERSIONS: [(u32, &str); 9] = [
    (822, "PostgreSQL 8.2"),
    (833, "PostgreSQL 8.3"),
    (843, "PostgreSQL 8.4"),
    (903, "PostgreSQL 9.0 or 9.1"),
    (922, "PostgreSQL 9.2"),
    (937, "PostgreSQL 9.3"),
    (942, "PostgreSQL 9.4 or 9.5"),
    (960, "PostgreSQL 9.6"),
    (1002, "PostgreSQL 10"),
];

/// `DBState`: what the server was doing when it last wrote the control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are pg_controldata's and say it all")]
pub enum ClusterState {
    StartingUp,
    ShutDown,
    ShutDownInRecovery,
    ShuttingDown,
    InCrashRecovery,
    InArchiveRecovery,
    InProduction,
}

impl ClusterState {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::StartingUp,
            1 => Self::ShutDown,
            2 => Self::ShutDownInRecovery,
            3 => Self::ShuttingDown,
            4 => Self::InCrashRecovery,
            5 => Self::InArchiveRecovery,
            6 => Self::InProduction,
            _ => return None,
        })
    }

    /// As `pg_controldata` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StartingUp => "starting up",
            Self::ShutDown => "shut down",
            Self::ShutDownInRecovery => "shut down in recovery",
            Self::ShuttingDown => "shutting down",
            Self::InCrashRecovery => "in crash recovery",
            Self::InArchiveRecovery => "in archive recovery",
            Self::InProduction => "in production",
        }
    }

    /// Whether all pages were written before the server stopped.
    pub const fn is_clean(self) -> bool {
        matches!(self, Self::ShutDown | Self::ShutDownInRecovery)
    }
}

impl fmt::Display for ClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// `data_checksum_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// 0: pages carry no checksums.
    Off,
    /// 1: every page carries one.
    On,
    /// 2 or 3: being switched off or on while the server runs; some pages carry one, so a mismatch proves nothing.
    InProgress,
}

/// The contents of `global/pg_control`, CRC-checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlFile {
    /// PostgreSQL's major version, 12 to 18, from the catalog version.
    pub major_version: u32,
    /// `pg_control_version`.
    pub control_version: u32,
    /// `catalog_version_no`.
    pub catalog_version: u32,
    /// `system_identifier`: unique to the `initdb` run; the same in all its copies and standbys.
    pub system_identifier: u64,
    /// `state`.
    pub state: ClusterState,
    /// `time`: when the file was last written, seconds since 1970.
    pub time: i64,
    /// `checkPoint`: LSN of the last checkpoint record.
    pub checkpoint: u64,
    /// `redo`: LSN from which recovery would start.
    pub redo: u64,
    /// `ThisTimeLineID`.
    pub timeline: u32,
    /// `nextXid` with its epoch in the high half: 64 bits that never wrap.
    pub next_xid: u64,
    /// `nextOid`.
    pub next_oid: u32,
    /// `nextMulti`.
    pub next_multi: u32,
    /// `nextMultiOffset`: end of the members of the last multixact.
    pub next_multi_offset: u32,
    /// `oldestXid`: pg_xact is kept from here on.
    pub oldest_xid: u32,
    /// `oldestXidDB`.
    pub oldest_xid_database: u32,
    /// `oldestMulti`: pg_multixact is kept from here on.
    pub oldest_multi: u32,
    /// `oldestMultiDB`.
    pub oldest_multi_database: u32,
    /// `oldestActiveXid`: 0 after a shutdown.
    pub oldest_active_xid: u32,
    /// `minRecoveryPoint`: an LSN; not 0 in a standby or an unfinished restore.
    pub min_recovery_point: u64,
    /// `backupStartPoint`: not 0 while a base backup has not been recovered to its end.
    pub backup_start_point: u64,
    /// `maxAlign`: always 8 here.
    pub max_align: u32,
    /// `blcksz`: bytes a block; a power of two from 1024 to 32,768.
    pub block_size: u32,
    /// `relseg_size`: blocks a segment file.
    pub blocks_per_segment: u32,
    /// `nameDataLen`: bytes of a `name`, its final NUL included.
    pub name_data_len: u32,
    /// `toast_max_chunk_size`: bytes of a TOAST chunk.
    pub toast_max_chunk_size: u32,
    /// `loblksize`: bytes of a large object's page.
    pub large_object_block_size: u32,
    /// `float8ByVal`: 8-byte values are passed by value; says nothing of the files.
    pub float8_by_val: bool,
    /// `data_checksum_version`.
    pub checksums: ChecksumState,
    /// `default_char_signedness` (18 and later; earlier files were written by what this machine is: signed).
    pub char_signed: bool,
}

impl ControlFile {
    /// Reads and checks `global/pg_control` below `pgdata`.
    ///
    /// # Errors
    /// `NotACluster` if there is no such file, `ControlFile` if it is short or damaged, `Unsupported` if it is of a
    /// version or a machine whose files are not read, `Io`.
    pub fn read(pgdata: &Path) -> Result<Self> {
        let path = pgdata.join("global/pg_control");
        let bytes = read_small_file(&path, FILE_SIZE)?
            .ok_or_else(|| Error::new(ErrorKind::NotACluster, "there is no such file").with_path(&path))?;
        Self::parse(&bytes).map_err(|e| e.with_path(path))
    }

    /// Checks and takes apart the contents of the file; errors as [`ControlFile::read`], without the path.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let short = || damaged(format!("is truncated: {} bytes", bytes.len()));
        let control_version = u32_at(bytes, 8).ok_or_else(short)?;
        let format = FORMATS
            .iter()
            .find(|format| format.version == control_version)
            .ok_or_else(|| unknown_version(control_version))?;
        let stored = u32_at(bytes, format.crc_at).ok_or_else(short)?;
        let computed = crc32c::crc32c(&bytes[..format.crc_at]);
        if stored != computed {
            return Err(damaged(format!("CRC is {stored:08X}, computed {computed:08X}: the file is damaged"))
                .with_hint("restore it from a backup; pg_resetwal is the last resort and loses transactions"));
        }
        // The CRC proves that the file is at least this long, and that it is what a server (or a forger) wrote.
        let fields = Fields(bytes);
        let control = Self {
            major_version: major_version(control_version, fields.u32(12))?,
            control_version,
            catalog_version: fields.u32(12),
            system_identifier: fields.u64(0),
            state: ClusterState::from_number(fields.u32(16))
                .ok_or_else(|| damaged(format!("unknown cluster state {}", fields.u32(16))))?,
            time: fields.u64(24).cast_signed(),
            checkpoint: fields.u64(32),
            redo: fields.u64(40),
            timeline: fields.u32(48),
            next_xid: fields.u64(64),
            next_oid: fields.u32(72),
            next_multi: fields.u32(76),
            next_multi_offset: fields.u32(80),
            oldest_xid: fields.u32(84),
            oldest_xid_database: fields.u32(88),
            oldest_multi: fields.u32(92),
            oldest_multi_database: fields.u32(96),
            oldest_active_xid: fields.u32(120),
            min_recovery_point: fields.u64(136),
            backup_start_point: fields.u64(152),
            max_align: fields.u32(204),
            block_size: fields.u32(216),
            blocks_per_segment: fields.u32(220),
            name_data_len: fields.u32(232),
            toast_max_chunk_size: fields.u32(240),
            large_object_block_size: fields.u32(244),
            // 12 has float4ByVal first.
            float8_by_val: fields.bool(if control_version == 1201 { 249 } else { 248 }),
            checksums: checksum_state(fields.u32(252))?,
            char_signed: control_version < 1800 || fields.bool(256),
        };
        let float_format = f64::from_bits(fields.u64(208));
        if float_format != FLOAT_FORMAT {
            return Err(unsupported(format!("floating point format {float_format} instead of {FLOAT_FORMAT}"))
                .with_hint("the cluster is of a machine whose floating point numbers are not IEEE 754"));
        }
        control.check_geometry()?;
        Ok(control)
    }

    fn check_geometry(&self) -> Result<()> {
        if self.max_align != 8 {
            return Err(unsupported(format!("maximum data alignment {} instead of 8", self.max_align))
                .with_hint("the cluster is of a 32-bit machine; dump and restore it there"));
        }
        if !self.block_size.is_power_of_two() || !(1024..=32_768).contains(&self.block_size) {
            return Err(damaged(format!("block size {}", self.block_size)));
        }
        if self.blocks_per_segment == 0 {
            return Err(damaged("segments of 0 blocks"));
        }
        if !(16..=4096).contains(&self.name_data_len) {
            return Err(damaged(format!("maximum length of identifiers {}", self.name_data_len)));
        }
        if self.toast_max_chunk_size == 0 || self.toast_max_chunk_size >= self.block_size {
            return Err(damaged(format!("TOAST chunks of {} bytes", self.toast_max_chunk_size)));
        }
        Ok(())
    }
}

/// Fixed fields of a control file whose length was checked; a byte that is not there reads as 0.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&self, at: usize) -> u32 {
        u32_at(self.0, at).unwrap_or(0)
    }

    fn u64(&self, at: usize) -> u64 {
        u64_at(self.0, at).unwrap_or(0)
    }

    fn bool(&self, at: usize) -> bool {
        array_at::<1>(self.0, at).is_some_and(|b| b != [0])
    }
}

fn major_version(control_version: u32, catalog_version: u32) -> Result<u32> {
    RELEASES
        .iter()
        .find(|&&(_, control, catalog)| control == control_version && catalog == catalog_version)
        .map(|&(major, ..)| major)
        .ok_or_else(|| {
            unsupported(format!(
                "catalog version {catalog_version} with pg_control version {control_version} is of no PostgreSQL \
                 release from 12 to 18"
            ))
            .with_hint("betas and other products have catalogs of their own, which are not read")
        })
}

fn checksum_state(version: u32) -> Result<ChecksumState> {
    Ok(match version {
        0 => ChecksumState::Off,
        1 => ChecksumState::On,
        2 | 3 => ChecksumState::InProgress,
        _ => return Err(unsupported(format!("unknown data page checksum version {version}"))),
    })
}

fn unknown_version(version: u32) -> Error {
    let is_known = |v: u32| FORMATS.iter().any(|f| f.version == v) || OTHER_VERSIONS.iter().any(|&(o, _)| o == v);
    if let Some((_, name)) = OTHER_VERSIONS.iter().find(|&&(other, _)| other == version) {
        return not_read(version, name);
    }
    match version {
        // 11 counted 1100; 19 and what comes then count on in the same way.
        1100 => not_read(version, "PostgreSQL 11"),
        1801..=9999 => not_read(version, "later than PostgreSQL 18"),
        _ if is_known(version.swap_bytes()) || version.swap_bytes() == 1100 => unsupported(format!(
            "pg_control version {} in the other byte order: the cluster is of a big-endian machine",
            version.swap_bytes()
        ))
        .with_hint("only clusters of little-endian 64-bit machines are read"),
        _ => damaged(format!("unknown pg_control version {version}: the file is damaged or no control file")),
    }
}

fn not_read(version: u32, name: &str) -> Error {
    unsupported(format!("pg_control version {version} ({name}) is not read"))
        .with_hint("PostgreSQL 12 to 18 are; pg_upgrade or dump the cluster")
}

fn damaged(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::ControlFile, message)
}

fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
pub(super) mod tests;
