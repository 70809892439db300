//! Pages in memory: checksum, validation, taking tuples apart.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use heapscan::heap::{DeformPlan, LinePointer, PageCheck, PageColumns, ValidPage, VerifyMode, checksum::page_checksum};
use heapscan_benches::{open, table_bytes};
use std::hint::black_box;

const BLOCK: usize = 8192;

fn valid(bytes: &[u8], block: u32) -> ValidPage<'_> {
    match ValidPage::check(bytes, block, VerifyMode::Structure) {
        Ok(PageCheck::Valid(page)) => page,
        other => panic!("block {block}: {other:?}"),
    }
}

fn pages(c: &mut Criterion) {
    let bytes = table_bytes("pgbench_accounts");
    let blocks = || bytes.chunks_exact(BLOCK).zip(0u32..);
    let mut group = c.benchmark_group("page");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("checksum", |b| {
        b.iter(|| blocks().map(|(page, block)| u64::from(page_checksum(page, block))).sum::<u64>());
    });
    group.bench_function("check structure", |b| {
        b.iter(|| blocks().map(|(page, block)| u64::from(valid(page, block).summary().tuples)).sum::<u64>());
    });
    group.bench_function("check checksum and structure", |b| {
        b.iter(|| {
            for (page, block) in blocks() {
                black_box(ValidPage::check(page, block, VerifyMode::Checksum).expect("whole"));
            }
        });
    });
    group.finish();
}

fn tuples(c: &mut Criterion) {
    let bytes = table_bytes("pgbench_accounts");
    let (_, table) = open("sync".parse().expect("a method"), 1 << 20, "pgbench_accounts");
    let pages: Vec<(ValidPage<'_>, Vec<LinePointer>)> = bytes
        .chunks_exact(BLOCK)
        .zip(0u32..)
        .map(|(page, block)| {
            let page = valid(page, block);
            (page, page.line_pointers().collect())
        })
        .collect();
    let rows = pages.iter().map(|(_, tuples)| tuples.len() as u64).sum();
    let mut group = c.benchmark_group("tuple");
    group.throughput(Throughput::Elements(rows));
    for (name, projection) in [("first column", &[0][..]), ("all columns", &[0, 1, 2, 3])] {
        let plan = DeformPlan::new(&table.info().layout, projection).expect("a plan");
        group.bench_function(format!("deform {name}"), |b| {
            b.iter(|| {
                let mut values = Vec::new();
                for (page, tuples) in &pages {
                    for pointer in tuples {
                        plan.deform(&page.tuple(*pointer), &mut values).expect("whole");
                        black_box(&values);
                    }
                }
            });
        });
        group.bench_function(format!("deform a page, {name}"), |b| {
            let mut columns = PageColumns::default();
            b.iter(|| {
                for (page, tuples) in &pages {
                    plan.deform_page(page, tuples, &mut columns).expect("whole");
                    black_box(columns.rows());
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pages, tuples);
criterion_main!(benches);
