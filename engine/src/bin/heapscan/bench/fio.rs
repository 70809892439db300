//! The device measured by fio, as a check of our own ceiling.

use super::{
    case::Case,
    ceilings,
    clock::Spent,
    run::{Run, list},
};
use serde_json::Value;
use std::{path::PathBuf, process::Command};

pub(super) fn is_installed() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Direct reads by fio with io_uring, of the size and depth of the row: all of the files, or `lookups` at random.
pub(super) fn run(case: &Case, files: &[PathBuf], lookups: u64) -> Result<Run, String> {
    let point = ceilings::point(case);
    let mut command = Command::new("fio");
    // Memory on transparent huge pages, as our own is: direct reads into small pages are less than half as fast here and
    // there (glibc 2.35).
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    command.args(["--name=ceiling", "--readonly", "--direct=1", "--ioengine=io_uring"]);
    command.args(["--output-format=json", "--invalidate=0", "--allow_file_create=0"]);
    match point.random {
        Some(_) => {
            command.args(["--rw=randread", "--norandommap", "--file_service_type=random"]);
            command.arg(format!("--io_size={}", lookups * point.read_bytes as u64));
        }
        None => {
            command.args(["--rw=read", "--file_service_type=sequential"]);
        }
    }
    command.arg(format!("--bs={}", point.read_bytes)).arg(format!("--iodepth={}", point.depth));
    let batch = (point.depth / 4).max(1);
    command.arg(format!("--iodepth_batch_submit={batch}")).arg(format!("--iodepth_batch_complete_min={batch}"));
    if point.registered {
        command.arg("--fixedbufs=1");
    }
    command.arg(format!("--filename={}", list(files)));
    let output = command.output().map_err(|error| format!("fio: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio: {}: {}", output.status, text.lines().next().unwrap_or("")));
    }
    parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| "fio: its output is not understood".to_owned())
}

fn parse(text: &str) -> Option<Run> {
    // Warnings can stand before the document.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let wall = read.get("runtime")?.as_f64()? / 1e3;
    // Per cent of the job's time.
    let share = |name: &str| job.get(name).and_then(Value::as_f64).map(|percent| percent / 100.0 * wall);
    let spent = Spent { wall, user: share("usr_cpu")?, system: share("sys_cpu")? };
    let bytes = read.get("io_bytes")?.as_u64()?;
    let operations = read.get("total_ios")?.as_u64()?;
    (wall > 0.0 && bytes > 0).then(|| Run { spent, bytes, operations, ..Run::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_json_is_understood() {
        let text = "fio: a warning\n{\"jobs\": [{\"read\": {\"io_bytes\": 1000, \"runtime\": 500, \"total_ios\": 9}, \
                    \"usr_cpu\": 10.0, \"sys_cpu\": 20.0}]}";
        let run = parse(text).expect("a run");
        assert_eq!((run.bytes, run.spent.wall), (1000, 0.5));
        assert!((run.spent.cpu() - 0.15).abs() < 1e-9);
        assert!(parse("{}").is_none() && parse("").is_none());
    }
}
