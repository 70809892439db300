//! Whether a folder may be opened at all.

use super::*;

fn refusal(cluster: &FakeCluster) -> (ErrorKind, String) {
    let error = cluster.open(OpenOptions::default()).expect_err("must be refused");
    (error.kind(), error.to_string())
}

/// What is said when the same is opened nevertheless.
fn overridden(cluster: &FakeCluster) -> Vec<String> {
    let options = OpenOptions { allow_unclean: true, ..OpenOptions::default() };
    cluster.open(options).expect("overridden").warnings().to_vec()
}

#[test]
fn a_cluster_at_rest_opens_without_warnings() {
    let fake = FakeCluster::new();
    let cluster = fake.open(OpenOptions::default()).expect("a good cluster");
    assert_eq!(cluster.control().major_version, VERSION);
    assert!(cluster.warnings().is_empty());
    assert_eq!(cluster.global_map().mappings(), [(1262, 91_262), (1260, 91_260)]);
}

#[test]
fn folders_that_are_no_clusters() {
    let fake = FakeCluster::new();
    let kind_of = |path: &Path| Cluster::open(path, OpenOptions::default()).expect_err("no cluster").kind();
    assert_eq!(kind_of(&fake.path().join("nowhere")), ErrorKind::NotACluster);
    assert_eq!(kind_of(&fake.path().join("PG_VERSION")), ErrorKind::NotACluster);
    assert_eq!(kind_of(&fake.path().join("global")), ErrorKind::NotACluster);
    fs::remove_file(fake.path().join("global/pg_control")).expect("removed");
    let (kind, message) = refusal(&fake);
    assert_eq!(kind, ErrorKind::NotACluster);
    assert!(message.contains("global/pg_control"), "{message}");
}

#[test]
fn versions_must_agree() {
    for (version, kind, part) in [
        ("14\n", ErrorKind::NotACluster, "PG_VERSION says 14"),
        ("9.6\n", ErrorKind::Unsupported, "PostgreSQL 9.6"),
        ("fifteen", ErrorKind::NotACluster, "\"fifteen\""),
        ("", ErrorKind::NotACluster, "\"\""),
    ] {
        let fake = FakeCluster::new();
        fake.write("PG_VERSION", version.as_bytes());
        let (refused, message) = refusal(&fake);
        assert_eq!(refused, kind, "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_running_server_cannot_be_overridden() {
    let fake = FakeCluster::new();
    for pid in [std::process::id().to_string(), format!("-{}", std::process::id()), String::new(), "x".to_owned()] {
        fake.write("postmaster.pid", format!("{pid}\n/data\n1700000000\n5432\n").as_bytes());
        let (kind, message) = refusal(&fake);
        assert_eq!(kind, ErrorKind::ServerRunning);
        let named = if pid.parse::<i32>().is_ok() { pid.trim_start_matches('-') } else { "names no process" };
        assert!(message.contains(named), "{message}");
        let options = OpenOptions { allow_unclean: true, ..OpenOptions::default() };
        assert_eq!(fake.open(options).expect_err("running").kind(), ErrorKind::ServerRunning, "{pid:?}");
    }
}

#[test]
fn a_running_server_is_named_before_what_it_is_writing() {
    let fake = FakeCluster::new();
    fake.write("global/pg_control", &[0; 100]);
    assert_eq!(refusal(&fake).0, ErrorKind::ControlFile);
    fake.write("postmaster.pid", format!("{}\n", std::process::id()).as_bytes());
    assert_eq!(refusal(&fake).0, ErrorKind::ServerRunning);
}

#[test]
fn the_lock_file_of_a_dead_server_can() {
    let fake = FakeCluster::new();
    // Larger than any pid (PID_MAX_LIMIT is 2^22).
    fake.write("postmaster.pid", b"2147483647\n/data\n");
    let (kind, message) = refusal(&fake);
    assert_eq!(kind, ErrorKind::ServerRunning);
    assert!(message.contains("2147483647") && message.contains("does not run"), "{message}");
    let warnings = overridden(&fake);
    assert!(warnings.len() == 1 && warnings[0].contains("2147483647"), "{warnings:?}");
}

#[test]
fn h25_unclean_clusters_are_refused_with_a_recipe() {
    for state in [0, 3, 4, 5, 6] {
        let fake = FakeCluster::new();
        fake.set_control(|control| control.u32(16, state));
        let (kind, message) = refusal(&fake);
        assert_eq!(kind, ErrorKind::Unclean);
        assert!(message.contains("not shut down cleanly") && message.contains("start a server"), "{message}");
        assert_eq!(overridden(&fake).len(), 1);
    }
    for name in ["backup_label", "tablespace_map"] {
        let fake = FakeCluster::new();
        fake.write(name, b"");
        let (kind, message) = refusal(&fake);
        assert_eq!(kind, ErrorKind::Unclean);
        assert!(message.contains(name) && message.contains("base backup"), "{message}");
        assert_eq!(overridden(&fake).len(), 1);
    }
    let fake = FakeCluster::new();
    fake.set_control(|control| control.u64(152, 0x0200_0028));
    assert_eq!(refusal(&fake).0, ErrorKind::Unclean);
}

#[test]
fn standbys_are_named() {
    let fake = FakeCluster::new();
    fake.write("standby.signal", b"");
    fake.set_control(|control| control.u32(16, 2));
    let cluster = fake.open(OpenOptions::default()).expect("a standby at rest");
    assert_eq!(cluster.control().state, ClusterState::ShutDownInRecovery);
    assert_eq!(cluster.warnings().len(), 2);
}

#[test]
fn checksums_that_are_being_switched_are_named() {
    let fake = FakeCluster::new();
    fake.set_control(|control| control.u32(252, 2));
    let cluster = fake.open(OpenOptions::default()).expect("a cluster at rest");
    assert!(cluster.warnings().len() == 1 && cluster.warnings()[0].contains("checksums"), "{:?}", cluster.warnings());
}

#[test]
fn h9_encrypted_clusters_are_recognised() {
    for file in ["pg_tde/5_keys", "pg_encryption/key.bin", "base/16384/pg_tde.map"] {
        let fake = FakeCluster::new();
        let folder = Path::new(file).parent().expect("a folder");
        fs::create_dir_all(fake.path().join(folder)).expect("a folder");
        assert!(fake.open(OpenOptions::default()).is_ok(), "the folder alone says nothing");
        fake.write(file, b"key");
        let (kind, message) = refusal(&fake);
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(message.contains("looks encrypted") && message.contains(file), "{message}");
    }
}

#[test]
fn a_damaged_map_is_refused() {
    let fake = FakeCluster::new();
    fake.write("global/pg_filenode.map", &[0; 512]);
    assert_eq!(refusal(&fake).0, ErrorKind::Corrupt);
    let fake = FakeCluster::new();
    fs::remove_file(fake.path().join("base/16384/pg_filenode.map")).expect("removed");
    assert_eq!(fake.try_database(OpenOptions::default()).expect_err("no map").kind(), ErrorKind::Corrupt);
}

#[test]
fn the_database_is_chosen_by_name_or_if_there_is_only_one() {
    let fake = FakeCluster::new();
    let choose = |fake: &FakeCluster, name: Option<&str>| {
        let cluster = fake.open(OpenOptions::default()).expect("a good cluster");
        cluster.database(Arc::clone(&fake.reader) as _, name).map(|d| d.info().name.clone())
    };
    for (oid, name) in [(1, "template1"), (5, "postgres")] {
        fake.add_database(oid, name);
    }
    assert_eq!(choose(&fake, None).expect("only one with a folder"), "shop");
    fs::create_dir(fake.path().join("base/5")).expect("a folder");
    assert_eq!(choose(&fake, None).expect("postgres does not count"), "shop");
    let error = choose(&fake, Some("template1")).expect_err("no folder");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = choose(&fake, Some("stock")).expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("\"postgres\", \"shop\", \"template1\""), "{error}");
    fake.add_database(16_385, "stock");
    fs::create_dir(fake.path().join("base/16385")).expect("a folder");
    let error = choose(&fake, None).expect_err("two");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("\"shop\", \"stock\""), "{error}");
    assert_eq!(choose(&fake, Some("shop")).expect("named"), "shop");
    fake.add_database(16_386, "shop");
    assert_eq!(choose(&fake, Some("shop")).expect_err("twice").kind(), ErrorKind::Corrupt);
}
