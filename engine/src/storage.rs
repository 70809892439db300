//! A fork of a relation as files: segments, and which file a block lies in.

use crate::{Error, ErrorKind, Result};
use heapscan_io::{DataFile, OpenFileOptions};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

mod open_files;

pub use open_files::OpenFiles;
use open_files::Slot;

/// Where a block lies.
#[derive(Clone, Debug)]
pub struct Location {
    /// The segment's file.
    pub file: Arc<DataFile>,
    /// Byte offset of the block in that file.
    pub offset: u64,
    /// How many blocks follow in this file, this one included.
    pub blocks: u32,
}

/// How many segment numbers behind the last one are looked at for files that no scan would reach.
const LOOK_BEHIND: usize = 4;

/// Segments of one block are the smallest there could be; a number beyond this is no segment of a relation.
const SEGMENTS_MAX: usize = 1 << 20;

/// What to do with a piece of a block at the end of the last segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingFragment {
    /// An error: the file was truncated, by a partial copy or a full disk.
    #[default]
    Refuse,
    /// Not read, as the server does not: a crash while the file was extended leaves one, and recovery writes the
    /// block anew. [`RelationFork::fragment`] says how long it is.
    Ignore,
}

/// A segment: which file it was when the relation was opened, and that file while it is open.
#[derive(Debug)]
struct Segment {
    /// Device and inode; `None` where there is no file.
    identity: Option<(u64, u64)>,
    /// Blocks in it.
    blocks: u32,
    slot: Arc<Slot>,
}

/// One fork of a relation, with its segments (`16384`, `16384.1`, ...). Sizes are taken once, when it is opened;
/// files are opened when they are needed, and closed again when others need the descriptors ([`OpenFiles`]).
#[derive(Debug)]
pub struct RelationFork {
    base: PathBuf,
    block_size: u32,
    blocks_per_segment: u32,
    blocks: u32,
    fragment: u32,
    open: OpenFileOptions,
    segments: Vec<Segment>,
    open_files: Arc<OpenFiles>,
}

impl RelationFork {
    /// Finds the segments of the fork whose first segment is `base`; refuses a trailing fragment.
    ///
    /// # Errors
    /// As [`RelationFork::open_with`].
    pub fn open(base: &Path, block_size: u32, blocks_per_segment: u32, open: OpenFileOptions) -> Result<Self> {
        Self::open_with(base, block_size, blocks_per_segment, open, TrailingFragment::Refuse)
    }

    /// Finds the segments of the fork whose first segment is `base`.
    ///
    /// The fork ends with its first segment that is not full, or before the first one that is missing. Empty segments
    /// behind the end are what truncation leaves.
    ///
    /// # Errors
    /// `Io` if the first segment is missing or one cannot be examined; `Corrupt` if there are blocks behind the end, a
    /// file does not end at a block boundary (see [`TrailingFragment`]) or is longer than a segment, or there are more
    /// blocks than a block number can count; `Usage` if a size is 0.
    pub fn open_with(
        base: &Path,
        block_size: u32,
        blocks_per_segment: u32,
        open: OpenFileOptions,
        trailing: TrailingFragment,
    ) -> Result<Self> {
        let segment_bytes = u64::from(block_size) * u64::from(blocks_per_segment);
        if segment_bytes == 0 {
            return Err(Error::new(ErrorKind::Usage, "blocks and segments cannot have size 0").with_path(base));
        }
        let (mut total, mut fragment) = (0u64, 0);
        let mut segments = Vec::new();
        loop {
            let path = segment_path(base, segments.len());
            let Some((size, identity)) = size_of(&path)? else {
                if segments.is_empty() {
                    let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
                    return Err(Error::os(path, "open relation", &missing));
                }
                break;
            };
            if size > segment_bytes {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("size {size} is more than a segment of {segment_bytes} bytes"),
                )
                .with_path(path));
            }
            fragment = size % u64::from(block_size);
            if fragment != 0 && trailing == TrailingFragment::Refuse {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("size {size} is not a multiple of the block size {block_size}: the file is truncated"),
                )
                .with_path(path));
            }
            let blocks = (size / u64::from(block_size)) as u32; // not more than a segment has
            segments.push(Segment { identity: Some(identity), blocks, slot: Arc::default() });
            total += u64::from(blocks);
            if size < segment_bytes {
                break;
            }
        }
        check_nothing_follows(base, segments.len())?;
        let blocks = u32::try_from(total).map_err(|_| {
            Error::new(ErrorKind::Corrupt, format!("{total} blocks are more than a block number counts"))
                .with_path(base)
        })?;
        let fragment = fragment as u32; // less than a block
        let open_files = Arc::clone(OpenFiles::of_process());
        Ok(Self { base: base.to_owned(), block_size, blocks_per_segment, blocks, fragment, open, segments, open_files })
    }

    /// Finds what is left of the fork whose first segment is `base`: segments behind a short or missing one are placed by
    /// their number. Blocks that are not there are errors when they are asked for ([`locate`](Self::locate)); pieces of
    /// blocks at the ends of files are not read.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with), but for what is missing; `Io` if there is no segment at all.
    pub fn open_salvage(
        base: &Path,
        block_size: u32,
        blocks_per_segment: u32,
        open: OpenFileOptions,
    ) -> Result<(Self, Vec<Error>)> {
        let segment_bytes = u64::from(block_size) * u64::from(blocks_per_segment);
        if segment_bytes == 0 {
            return Err(Error::new(ErrorKind::Usage, "blocks and segments cannot have size 0").with_path(base));
        }
        let Some(last) = last_segment(base)? else {
            let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
            return Err(Error::os(base, "open relation", &missing));
        };
        let (mut segments, mut defects) = (Vec::new(), Vec::new());
        let mut fragment = 0;
        for index in 0..=last {
            let path = segment_path(base, index);
            let found = size_of(&path)?;
            let (size, identity) = found.map_or((0, None), |(size, identity)| (size, Some(identity)));
            if size > segment_bytes || !size.is_multiple_of(u64::from(block_size)) {
                let what = format!("size {size}: not whole blocks of {block_size} bytes, or more than a segment");
                defects.push(Error::new(ErrorKind::Corrupt, what).with_path(&path));
            }
            let blocks = (size.min(segment_bytes) / u64::from(block_size)) as u32;
            fragment = (size % u64::from(block_size)) as u32;
            segments.push(Segment { identity, blocks, slot: Arc::default() });
        }
        let before = u64::try_from(last).unwrap_or(u64::MAX).saturating_mul(u64::from(blocks_per_segment));
        let total = before.saturating_add(segments.last().map_or(0, |segment| u64::from(segment.blocks)));
        let blocks = u32::try_from(total).map_err(|_| {
            Error::new(ErrorKind::Corrupt, format!("{total} blocks are more than a block number counts"))
                .with_path(base)
        })?;
        let open_files = Arc::clone(OpenFiles::of_process());
        let base = base.to_owned();
        Ok((Self { base, block_size, blocks_per_segment, blocks, fragment, open, segments, open_files }, defects))
    }

    /// A fork without any block, for what has no files.
    pub(crate) fn empty(base: &Path, block_size: u32, blocks_per_segment: u32) -> Self {
        Self {
            base: base.to_owned(),
            block_size,
            blocks_per_segment,
            blocks: 0,
            fragment: 0,
            open: OpenFileOptions::default(),
            segments: Vec::new(),
            open_files: Arc::clone(OpenFiles::of_process()),
        }
    }

    /// Lets another table count its open files, not that of the process.
    #[must_use]
    pub fn with_open_files(mut self, open_files: Arc<OpenFiles>) -> Self {
        self.open_files = open_files;
        self
    }

    /// Bytes behind the last block that were [ignored](TrailingFragment::Ignore).
    pub fn fragment(&self) -> u32 {
        self.fragment
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of segments whose files are there.
    pub(crate) fn segments_there(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.identity.is_some()).count() as u64
    }

    /// Bytes a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Path of the first segment.
    pub fn path(&self) -> &Path {
        &self.base
    }

    /// Path of the segment that holds `block`.
    pub fn path_of(&self, block: u32) -> PathBuf {
        segment_path(&self.base, (block / self.blocks_per_segment) as usize)
    }

    /// The file and offset of `block`.
    ///
    /// # Errors
    /// `Usage` if the relation has no such block, `Io` if its file cannot be opened.
    pub fn locate(&self, block: u32) -> Result<Location> {
        if block >= self.blocks {
            return Err(Error::new(ErrorKind::Usage, format!("the relation has {} blocks only", self.blocks))
                .with_path(&self.base)
                .with_block(block));
        }
        let index = (block / self.blocks_per_segment) as usize;
        let within = block % self.blocks_per_segment;
        let there = self.segments[index].blocks;
        if within >= there {
            return Err(self.hole(index).with_block(block));
        }
        let file = self.file(index).map_err(|error| error.with_block(block))?;
        Ok(Location { file, offset: u64::from(within) * u64::from(self.block_size), blocks: there - within })
    }

    #[cold]
    fn hole(&self, index: usize) -> Error {
        let segment = &self.segments[index];
        let what = match segment.identity {
            None => "this segment is missing".to_owned(),
            Some(_) => format!("this segment ends after {} blocks, and others follow it", segment.blocks),
        };
        Error::new(ErrorKind::Corrupt, what).with_path(segment_path(&self.base, index)).into_missing_block()
    }

    /// The file of a segment, opened if it is not open.
    fn file(&self, index: usize) -> Result<Arc<DataFile>> {
        let segment = &self.segments[index];
        self.open_files.file(&segment.slot, || {
            let path = segment_path(&self.base, index);
            let file = DataFile::open(&path, self.open)?;
            // It may be opened long after the relation was, and again.
            if file.identity().is_some() && file.identity() == segment.identity {
                return Ok(file);
            }
            Err(Error::new(ErrorKind::Corrupt, "another file took its place after the relation was opened")
                .with_path(path)
                .with_hint("something changes the cluster"))
        })
    }
}

/// Size, and device and inode, of a regular file; `None` if there is none.
fn size_of(path: &Path) -> Result<Option<(u64, (u64, u64))>> {
    match path.metadata() {
        Ok(meta) if meta.is_file() => Ok(Some((meta.len(), (meta.dev(), meta.ino())))),
        Ok(_) => Err(Error::new(ErrorKind::Corrupt, "is not a regular file").with_path(path)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::os(path, "stat", &e)),
    }
}

/// A file with blocks behind the end holds rows that a scan would never reach: they would be missing silently.
fn check_nothing_follows(base: &Path, end: usize) -> Result<()> {
    for segment in end..end + LOOK_BEHIND {
        let path = segment_path(base, segment);
        if size_of(&path)?.is_some_and(|(size, _)| size > 0) {
            let last = segment_path(base, end - 1);
            let what = if segment == end {
                format!("follows the short segment {}", last.display())
            } else {
                format!("follows a gap in the segments behind {}", last.display())
            };
            return Err(Error::new(ErrorKind::Corrupt, what)
                .with_path(path)
                .with_hint("a segment was truncated or not copied: the rows behind it cannot be placed"));
        }
    }
    Ok(())
}

/// The number of the last segment that has bytes (or is the first), by the names in the folder.
fn last_segment(base: &Path) -> Result<Option<usize>> {
    let folder = base.parent().unwrap_or(Path::new("."));
    let Some(name) = base.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let entries = folder.read_dir().map_err(|e| Error::os(folder, "read directory", &e))?;
    let mut last = None;
    for entry in entries {
        let entry = entry.map_err(|e| Error::os(folder, "read directory", &e))?;
        let file = entry.file_name();
        let number = match file.to_str().and_then(|file| file.strip_prefix(name)) {
            Some("") => 0,
            Some(suffix) => match suffix.strip_prefix('.').and_then(|digits| digits.parse::<usize>().ok()) {
                // As the server writes it: no sign, no leading zero; more blocks than a block number counts are refused later.
                Some(number) if number > 0 && suffix[1..] == number.to_string() && number <= SEGMENTS_MAX => number,
                _ => continue,
            },
            None => continue,
        };
        let size = size_of(&entry.path())?.map_or(0, |(size, _)| size);
        if (size > 0 || number == 0) && last.is_none_or(|last| number > last) {
            last = Some(number);
        }
    }
    Ok(last)
}

fn segment_path(base: &Path, segment: usize) -> PathBuf {
    if segment == 0 {
        return base.to_owned();
    }
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{segment}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 1024;

    /// A relation in segments of two blocks; `sizes` are those of its files in bytes, `None` where there is no file.
    fn relation(sizes: &[Option<u64>]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().join("16384");
        for (segment, size) in sizes.iter().enumerate().filter_map(|(segment, size)| Some((segment, (*size)?))) {
            let file = std::fs::File::create(segment_path(&base, segment)).expect("a file");
            file.set_len(size).expect("a size");
        }
        (folder, base)
    }

    fn open(sizes: &[Option<u64>], trailing: TrailingFragment) -> Result<RelationFork> {
        let (_folder, base) = relation(sizes);
        RelationFork::open_with(&base, BLOCK, 2, OpenFileOptions::default(), trailing)
    }

    fn error_of(sizes: &[Option<u64>]) -> (ErrorKind, String) {
        let error = open(sizes, TrailingFragment::Refuse).expect_err("must be refused");
        (error.kind(), error.to_string())
    }

    #[test]
    fn h2_block_numbers_go_on_through_the_segments() {
        let (_folder, base) = relation(&[Some(2048), Some(2048), Some(1024)]);
        let fork = RelationFork::open(&base, BLOCK, 2, OpenFileOptions::default()).expect("a good relation");
        assert_eq!((fork.blocks(), fork.fragment()), (5, 0));
        for (block, name, offset, blocks) in
            [(0, "16384", 0, 2), (1, "16384", 1024, 1), (3, "16384.1", 1024, 1), (4, "16384.2", 0, 1)]
        {
            let location = fork.locate(block).expect("a block");
            assert!(location.file.path().ends_with(name), "{block}: {:?}", location.file.path());
            assert_eq!((location.offset, location.blocks), (offset, blocks), "{block}");
            assert_eq!(fork.path_of(block), location.file.path());
        }
        let error = fork.locate(5).expect_err("no such block");
        assert_eq!((error.kind(), error.block()), (ErrorKind::Usage, Some(5)));
    }

    #[test]
    fn where_a_relation_ends() {
        for (sizes, blocks) in [
            (&[Some(0)][..], 0),
            (&[Some(1024)], 1),
            (&[Some(2048)], 2),
            (&[Some(2048), Some(0)], 2),
            (&[Some(0), Some(0), Some(0)], 0),
            (&[Some(2048), Some(2048), None, Some(0)], 4),
        ] {
            assert_eq!(open(sizes, TrailingFragment::Refuse).expect("a good relation").blocks(), blocks, "{sizes:?}");
        }
    }

    #[test]
    fn rows_that_would_be_missing_are_noticed() {
        for sizes in [
            &[Some(1024), Some(1024)][..],
            &[Some(0), Some(2048)],
            &[Some(2048), None, Some(1024)],
            &[Some(1024), None, None, Some(1024)],
            &[Some(2048), Some(0), Some(1024)],
        ] {
            let (kind, message) = error_of(sizes);
            assert_eq!(kind, ErrorKind::Corrupt, "{sizes:?}");
            assert!(message.contains("follows"), "{message}");
        }
        assert_eq!(error_of(&[Some(3072)]).0, ErrorKind::Corrupt);
        let error = open(&[None, Some(1024)], TrailingFragment::Refuse).expect_err("no first segment");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, Some(libc::ENOENT)));
    }

    #[test]
    fn a_trailing_fragment_is_refused_or_ignored() {
        for (sizes, blocks) in [(&[Some(1500)][..], 1), (&[Some(2048), Some(476)], 2)] {
            let (kind, message) = error_of(sizes);
            assert_eq!(kind, ErrorKind::Corrupt);
            assert!(message.contains("truncated"), "{message}");
            let fork = open(sizes, TrailingFragment::Ignore).expect("ignored");
            assert_eq!((fork.blocks(), fork.fragment()), (blocks, 476));
        }
        assert!(open(&[Some(1500), Some(1024)], TrailingFragment::Ignore).is_err());
    }

    #[test]
    fn what_is_left_of_a_relation_keeps_its_block_numbers() {
        let salvage = |sizes: &[Option<u64>]| {
            let (folder, base) = relation(sizes);
            let (fork, defects) = RelationFork::open_salvage(&base, BLOCK, 2, OpenFileOptions::default()).unwrap();
            let there: Vec<u32> = (0..fork.blocks()).filter(|&block| fork.locate(block).is_ok()).collect();
            drop(folder);
            (fork.blocks(), there, defects.len())
        };
        assert_eq!(salvage(&[Some(2048), Some(1024)]), (3, vec![0, 1, 2], 0));
        assert_eq!(salvage(&[Some(2048), None, Some(1024)]), (5, vec![0, 1, 4], 0));
        assert_eq!(salvage(&[None, Some(2048)]), (4, vec![2, 3], 0));
        assert_eq!(salvage(&[Some(1500), Some(2048)]), (4, vec![0, 2, 3], 1));
        assert_eq!(salvage(&[Some(2048), Some(0), None, Some(0)]), (2, vec![0, 1], 0));
        assert_eq!(salvage(&[Some(0)]), (0, vec![], 0));
        let (_folder, base) = relation(&[Some(2048), None, Some(1024)]);
        let (fork, _) = RelationFork::open_salvage(&base, BLOCK, 2, OpenFileOptions::default()).unwrap();
        let error = fork.locate(3).expect_err("a hole");
        assert!(error.path().unwrap().ends_with("16384.1") && error.block() == Some(3), "{error}");
        assert!(RelationFork::open_salvage(&base.with_file_name("9"), BLOCK, 2, OpenFileOptions::default()).is_err());
    }

    #[test]
    fn sizes_of_zero_and_folders_are_refused() {
        let (folder, base) = relation(&[Some(1024)]);
        for (block_size, blocks_per_segment) in [(0, 2), (1024, 0)] {
            let error = RelationFork::open(&base, block_size, blocks_per_segment, OpenFileOptions::default());
            assert_eq!(error.expect_err("zero").kind(), ErrorKind::Usage);
        }
        let error = RelationFork::open(folder.path(), BLOCK, 2, OpenFileOptions::default());
        assert_eq!(error.expect_err("a folder").kind(), ErrorKind::Corrupt);
    }
}
