//! Every rule of the snapshot test, over status files and tuples made by hand.

use super::*;
use crate::{
    ErrorKind,
    heap::{PageCheck, VerifyMode, testing::*},
};
use proptest::prelude::*;
use std::{fs, path::Path};

const BLOCK: u32 = 8192;
const COMMITTED: u32 = 100;
const ABORTED: u32 = 101;
const CRASHED: u32 = 102;
/// Sub-committed, with parents as named.
const CHILD_OF_COMMITTED: u32 = 103;
const CHILD_OF_CRASHED: u32 = 104;
const ORPHAN: u32 = 105;
const NEXT: u32 = 200;

fn counters() -> TransactionCounters {
    TransactionCounters {
        next_xid: u64::from(NEXT),
        oldest_xid: 3,
        next_multi: 6,
        next_multi_offset: 12,
        oldest_multi: 1,
    }
}

fn set_status(page: &mut [u8], xid: u32, status: u8) {
    page[xid as usize / 4] |= status << (xid % 4 * 2);
}

fn set_word(page: &mut [u8], index: usize, value: u32) {
    page[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
}

/// Multixacts: (first member's offset, members), in groups of four as `pg_multixact/members` has them.
fn members_page(members: &[(u32, u32, u8)]) -> Vec<u8> {
    let mut page = vec![0; BLOCK as usize];
    for &(offset, xid, status) in members {
        let (group, index) = (offset as usize / 4 * 20, offset as usize % 4);
        page[group + index] = status;
        page[group + 4 + index * 4..group + 8 + index * 4].copy_from_slice(&xid.to_le_bytes());
    }
    page
}

fn write(pgdata: &Path, name: &str, bytes: &[u8]) {
    let path = pgdata.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A data directory with the transactions above and five multixacts.
fn cluster() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut xact = vec![0; BLOCK as usize];
    for (xid, status) in [(COMMITTED, 1), (ABORTED, 2), (CHILD_OF_COMMITTED, 3), (CHILD_OF_CRASHED, 3), (ORPHAN, 3)] {
        set_status(&mut xact, xid, status);
    }
    write(dir.path(), "pg_xact/0000", &xact);
    let mut parents = vec![0; BLOCK as usize];
    set_word(&mut parents, CHILD_OF_COMMITTED as usize, COMMITTED);
    set_word(&mut parents, CHILD_OF_CRASHED as usize, CRASHED);
    write(dir.path(), "pg_subtrans/0000", &parents);
    let mut offsets = vec![0; BLOCK as usize];
    for (multi, offset) in [(1, 1), (2, 3), (3, 6), (4, 8), (5, 10)] {
        set_word(&mut offsets, multi, offset);
    }
    write(dir.path(), "pg_multixact/offsets/0000", &offsets);
    let members = [
        (1, COMMITTED, 0),
        (2, ABORTED, 3), // 1: lockers only
        (3, COMMITTED, 1),
        (4, COMMITTED, 5),
        (5, CRASHED, 0), // 2: updated by a committed one
        (6, COMMITTED, 0),
        (7, ABORTED, 4), // 3: updated by an aborted one
        (8, CRASHED, 5),
        (9, COMMITTED, 3), // 4: deleted by an unfinished one
        (10, ABORTED, 0),
        (11, CHILD_OF_COMMITTED, 4), // 5, the last: updated by a committed subtransaction
    ];
    write(dir.path(), "pg_multixact/members/0000", &members_page(&members));
    dir
}

fn open(dir: &tempfile::TempDir) -> TransactionLog {
    TransactionLog::open(dir.path(), counters(), BLOCK, 18).unwrap()
}

fn tuple(xmin: u32, xmax: u32, infomask: u16) -> TupleSpec {
    TupleSpec { xmin, xmax, infomask, ..TupleSpec::default() }
}

fn judge(log: &TransactionLog, spec: &TupleSpec) -> Result<Status> {
    let bytes = page(&[spec.bytes()], 0);
    let Ok(PageCheck::Valid(page)) = ValidPage::check(&bytes, 9, VerifyMode::Structure) else { panic!() };
    let visibility = Visibility::new(log, Rows::Committed);
    let tuple = page.tuple_at(1).unwrap();
    let status = visibility.status(&tuple)?;
    let mut set = VisibleSet::default();
    visibility.visible(&page, &mut set)?;
    assert_eq!(set.tuples().len() == 1, status == Status::Visible, "the page form agrees with the tuple form");
    assert_eq!(visibility.check(&tuple)?, status == Status::Visible);
    Ok(status)
}

#[test]
fn inserters() {
    use Status::*;
    let dir = cluster();
    let log = open(&dir);
    let none = bits::XMAX_INVALID;
    let cases = [
        (tuple(COMMITTED, 0, none), Visible),
        (tuple(ABORTED, 0, none), Aborted),
        (tuple(CRASHED, 0, none), Unfinished),
        (tuple(CHILD_OF_COMMITTED, 0, none), Visible),
        (tuple(CHILD_OF_CRASHED, 0, none), Unfinished),
        (tuple(ORPHAN, 0, none), Unfinished),
        // A super-deleted speculative tuple, and rows of initdb.
        (tuple(0, 0, none), Aborted),
        (tuple(1, 0, none), Visible),
        (tuple(2, 0, none), Visible),
        (tuple(NEXT, 0, none), Future),
        (tuple(NEXT - 1, 0, none), Unfinished),
        // Hints win over pg_xact, frozen wins over either hint and over the counter.
        (tuple(ABORTED, 0, none | bits::XMIN_COMMITTED), Visible),
        (tuple(COMMITTED, 0, none | bits::XMIN_INVALID), Aborted),
        (tuple(ABORTED, 0, none | bits::XMIN_FROZEN), Visible),
        (tuple(NEXT + 5, 0, none | bits::XMIN_FROZEN), Visible),
        (tuple(NEXT + 5, 0, none | bits::XMIN_COMMITTED), Future),
    ];
    for (spec, want) in cases {
        assert_eq!(judge(&log, &spec).unwrap(), want, "{spec:?}");
    }
}

#[test]
fn deleters_and_lockers() {
    use Status::*;
    let dir = cluster();
    let log = open(&dir);
    let with = |xmax, mask| tuple(COMMITTED, xmax, bits::XMIN_COMMITTED | mask);
    let cases = [
        (with(COMMITTED, 0), Deleted),
        (with(ABORTED, 0), Visible),
        (with(CRASHED, 0), Visible),
        (with(CHILD_OF_COMMITTED, 0), Deleted),
        (with(CHILD_OF_CRASHED, 0), Visible),
        (with(0, 0), Visible),
        (with(NEXT, 0), Visible),
        (with(NEXT, bits::XMAX_COMMITTED), Visible),
        (with(ABORTED, bits::XMAX_COMMITTED), Deleted),
        (with(COMMITTED, bits::XMAX_INVALID), Visible),
        // Locks: as they are written now, and as 9.2 wrote them.
        (with(COMMITTED, bits::XMAX_LOCK_ONLY | bits::XMAX_EXCL_LOCK), Visible),
        (with(COMMITTED, bits::XMAX_LOCK_ONLY | bits::XMAX_KEYSHR_LOCK), Visible),
        (with(COMMITTED, bits::XMAX_EXCL_LOCK), Visible),
        (with(COMMITTED, bits::XMAX_EXCL_LOCK | bits::XMAX_KEYSHR_LOCK), Deleted),
        (with(COMMITTED, bits::XMAX_KEYSHR_LOCK), Deleted),
        // A frozen row can be deleted all the same.
        (tuple(5, COMMITTED, bits::XMIN_FROZEN), Deleted),
        (tuple(5, ABORTED, bits::XMIN_FROZEN), Visible),
    ];
    for (spec, want) in cases {
        assert_eq!(judge(&log, &spec).unwrap(), want, "{spec:?}");
    }
}

#[test]
fn h23_multixacts() {
    use Status::*;
    let dir = cluster();
    let log = open(&dir);
    let with = |multi, mask| tuple(COMMITTED, multi, bits::XMIN_COMMITTED | bits::XMAX_IS_MULTI | mask);
    let updater = [None, Some(COMMITTED), Some(ABORTED), Some(CRASHED), Some(CHILD_OF_COMMITTED)];
    for ((multi, want), status) in (1..).zip(updater).zip([Visible, Deleted, Visible, Visible, Deleted]) {
        assert_eq!(log.multixact_updater(multi).unwrap(), want, "{multi}");
        assert_eq!(judge(&log, &with(multi, 0)).unwrap(), status, "{multi}");
        // An exclusive lock beside other members says nothing of a delete.
        assert_eq!(judge(&log, &with(multi, bits::XMAX_EXCL_LOCK)).unwrap(), status, "{multi}");
    }
    // Lock only: not looked up, so that what an upgraded cluster no longer has is not missed.
    assert_eq!(judge(&log, &with(4_000_000, bits::XMAX_LOCK_ONLY)).unwrap(), Visible);
    for multi in [0, 6, 7, 4_000_000_000] {
        let error = judge(&log, &with(multi, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Visibility, "{multi}");
        assert!(error.to_string().contains(&format!("row (9,1): multixact {multi}")), "{error}");
    }
}

#[test]
fn damaged_multixact_files_are_errors_not_loops() {
    let dir = cluster();
    let mut offsets = vec![0; BLOCK as usize];
    for (multi, offset) in [(1, 1), (2, 0x7fff_ffff), (3, 0), (4, 20), (5, 13)] {
        set_word(&mut offsets, multi, offset);
    }
    write(dir.path(), "pg_multixact/offsets/0000", &offsets);
    let log = open(&dir);
    for multi in 1..=5 {
        assert_eq!(log.multixact_updater(multi).unwrap_err().kind(), ErrorKind::Visibility, "{multi}");
    }
}

#[test]
fn multixact_members_across_pages_and_the_wrap() {
    let dir = tempfile::tempdir().unwrap();
    // Multixact 2^32 - 1 is followed by 1; its members begin at the last of page 0 (1636 a page) and go on in page 1.
    let mut offsets = vec![0; BLOCK as usize];
    set_word(&mut offsets, 1, 1637);
    write(dir.path(), "pg_multixact/offsets/0000", &offsets);
    let mut last = vec![0; 32 * BLOCK as usize];
    set_word(&mut last, 32 * 2048 - 1, 1635);
    write(dir.path(), "pg_multixact/offsets/FFFF", &last);
    let mut members = members_page(&[(1635, ABORTED, 0)]);
    members.extend(members_page(&[(0, COMMITTED, 5)]));
    write(dir.path(), "pg_multixact/members/0000", &members);
    let wrapped = TransactionCounters { next_multi: 2, oldest_multi: u32::MAX - 5, ..counters() };
    let log = TransactionLog::open(dir.path(), wrapped, BLOCK, 15).unwrap();
    assert_eq!(log.multixact_updater(u32::MAX).unwrap(), Some(COMMITTED));
}

#[test]
fn rows_moved_by_an_ancient_vacuum_full() {
    let dir = cluster();
    let log = open(&dir);
    for (mask, vacuum, want) in [
        (bits::MOVED_OFF, COMMITTED, Status::Aborted),
        (bits::MOVED_OFF, ABORTED, Status::Visible),
        (bits::MOVED_IN, COMMITTED, Status::Visible),
        (bits::MOVED_IN, CRASHED, Status::Aborted),
    ] {
        let spec = TupleSpec { field3: vacuum, ..tuple(50, 0, mask | bits::XMAX_INVALID) };
        assert_eq!(judge(&log, &spec).unwrap(), want, "{spec:?}");
    }
}

#[test]
fn h24_ids_are_compared_on_a_circle() {
    let dir = tempfile::tempdir().unwrap();
    let at = 4_294_967_290u32;
    let mut high = vec![0; 32 * BLOCK as usize];
    set_status(&mut high, at % (1 << 20), 1);
    write(dir.path(), "pg_xact/0FFF", &high);
    let mut low = vec![0; BLOCK as usize];
    set_status(&mut low, 10, 1);
    write(dir.path(), "pg_xact/0000", &low);
    let counters = TransactionCounters { next_xid: 1 << 32 | 63, oldest_xid: 3_200_000_000, ..counters() };
    let log = TransactionLog::open(dir.path(), counters, BLOCK, 15).unwrap();
    assert_eq!(log.status(at).unwrap(), XidStatus::Committed);
    assert_eq!(log.status(10).unwrap(), XidStatus::Committed);
    assert_eq!(log.status(63).unwrap(), XidStatus::Future);
    assert_eq!(log.status(1_000_000_000).unwrap(), XidStatus::Future);
    // Gone segment: the error names the transaction and the file; a frozen row does not need it.
    let gone = 3_100_000_000;
    let error = judge(&log, &tuple(gone, 0, bits::XMAX_INVALID)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Visibility);
    assert!(error.path().unwrap().ends_with("pg_xact/0B8C"), "{error}");
    assert!(error.to_string().contains("row (9,1): status of transaction 3100000000"), "{error}");
    assert!(error.to_string().contains("older than any that is kept"), "{error}");
    let frozen = tuple(gone, 0, bits::XMAX_INVALID | bits::XMIN_FROZEN);
    assert_eq!(judge(&log, &frozen).unwrap(), Status::Visible);
}

#[test]
fn h22_incomplete_status_files_are_errors() {
    let dir = cluster();
    write(dir.path(), "pg_xact/0000", &[0; 25]);
    let log = open(&dir);
    assert!(log.status(99).is_ok());
    let error = log.status(COMMITTED).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Visibility);
    assert!(error.to_string().contains("ends at byte 25"), "{error}");
    fs::remove_dir_all(dir.path().join("pg_xact")).unwrap();
    assert_eq!(open(&dir).status(COMMITTED).unwrap_err().kind(), ErrorKind::Visibility);
    write(dir.path(), "pg_xact/0000", &vec![0; 33 * BLOCK as usize]);
    assert_eq!(open(&dir).status(COMMITTED).unwrap_err().kind(), ErrorKind::Corrupt);
    for version in [11, 19] {
        let error = TransactionLog::open(dir.path(), counters(), BLOCK, version).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn status_pages_have_the_block_size_of_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let xid = 16_384 + 77;
    let mut xact = vec![0; 2 * 4096];
    set_status(&mut xact, xid, 1);
    write(dir.path(), "pg_xact/0000", &xact);
    let counters = TransactionCounters { next_xid: 20_000, ..counters() };
    let log = TransactionLog::open(dir.path(), counters, 4096, 14).unwrap();
    assert_eq!(log.status(xid).unwrap(), XidStatus::Committed);
    assert_eq!(log.status(xid + 1).unwrap(), XidStatus::Unfinished);
}

#[test]
fn page_form_all_visible_and_the_modes() {
    let dir = cluster();
    let log = open(&dir);
    let none = bits::XMAX_INVALID;
    let tuples = [
        tuple(COMMITTED, 0, none),
        tuple(ABORTED, 0, none),
        tuple(COMMITTED, 0, none | bits::XMIN_COMMITTED),
        tuple(NEXT + 1, 0, none),
        tuple(COMMITTED, COMMITTED, 0),
    ]
    .map(|spec| spec.bytes());
    let numbers = |bytes: &[u8], rows| {
        let Ok(PageCheck::Valid(page)) = ValidPage::check(bytes, 0, VerifyMode::Structure) else { panic!() };
        let visibility = Visibility::new(&log, rows);
        let mut set = VisibleSet::default();
        visibility.visible(&page, &mut set).unwrap();
        visibility.visible(&page, &mut set).unwrap();
        for tuple in page.tuples() {
            let listed = set.tuples().iter().any(|p| p.number == tuple.number());
            assert!(page.all_visible() || visibility.check(&tuple).unwrap() == listed);
        }
        (set.tuples().iter().map(|p| p.number).collect::<Vec<_>>(), visibility.future_xids())
    };
    let plain = page(&tuples, 0);
    assert_eq!(numbers(&plain, Rows::Committed), (vec![1, 3], 3));
    assert_eq!(numbers(&plain, Rows::Dead), (vec![2, 4, 5], 3));
    assert_eq!(numbers(&plain, Rows::All), (vec![1, 2, 3, 4, 5], 0));
    let all_visible = page(&tuples, 4);
    assert_eq!(numbers(&all_visible, Rows::Committed).0, [1, 2, 3, 4, 5]);
    assert!(numbers(&all_visible, Rows::Dead).0.is_empty());
}

#[test]
fn threads_can_share_a_log() {
    fn shared<T: Send + Sync>() {}
    shared::<TransactionLog>();
    shared::<Visibility<'_>>();
    let dir = cluster();
    let log = open(&dir);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(log.status(COMMITTED).unwrap(), XidStatus::Committed));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// No header panics or loops, whatever it says; damaged status files neither.
    #[test]
    fn any_header_is_judged(
        headers in prop::collection::vec(
            (
                prop_oneof![0u32..300, any::<u32>()],
                prop_oneof![0u32..8, 0u32..300, any::<u32>()],
                any::<u32>(),
                any::<u16>(),
            ),
            100,
        ),
        damage in prop::collection::vec((0usize..60, any::<u8>()), 0..6),
    ) {
        let dir = cluster();
        for name in ["pg_subtrans/0000", "pg_multixact/offsets/0000", "pg_multixact/members/0000"] {
            let path = dir.path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            for (at, value) in &damage {
                bytes[at + if name.starts_with("pg_sub") { 400 } else { 0 }] = *value;
            }
            fs::write(path, bytes).unwrap();
        }
        let log = open(&dir);
        for (xmin, xmax, field3, infomask) in headers {
            let spec = TupleSpec { field3, ..tuple(xmin, xmax, infomask & !bits::HASNULL) };
            if let Err(error) = judge(&log, &spec) {
                prop_assert_eq!(error.kind(), ErrorKind::Visibility);
            }
        }
    }
}
