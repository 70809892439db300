//! Whole scans of the bundled pgbench table (13 MB, page cache warm): pool, stream, aggregates, text, Arrow.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use heapscan::{MethodChoice, MethodName, RowFormat, aggregate, arrow::BatchOptions, probe_methods};
use heapscan_benches::open;
use std::{hint::black_box, sync::Arc};

const TABLE: &str = "pgbench_accounts";

/// The methods that can be used here. One that cannot gets no row, instead of a row that ran on something else.
fn methods() -> Vec<MethodName> {
    let usable = probe_methods();
    MethodName::ALL.into_iter().filter(|name| usable.iter().any(|m| m.usable && m.name == name.as_str())).collect()
}

fn pool(c: &mut Criterion) {
    let (engine, table) = open(MethodChoice::Named(MethodName::Sync), 64 << 20, TABLE);
    let pool = engine.pool();
    let relation = pool.register(Arc::clone(table.fork())).expect("registered");
    for block in 0..table.blocks() {
        drop(pool.read_block(relation, block).expect("read"));
    }
    c.bench_function("pool/pin and unpin a resident block", |b| {
        let mut block = 0;
        b.iter(|| {
            block = (block + 7) % table.blocks();
            black_box(pool.read_block(relation, block).expect("resident"))
        });
    });
}

fn scans(c: &mut Criterion) {
    let calls = aggregate::parse("sum(octet_length(filler))").expect("a list");
    let mut group = c.benchmark_group("scan");
    group.sample_size(20);
    for method in methods() {
        // Through a ring, from the page cache; and all in the pool.
        for (state, shared_buffers) in [("page cache warm", 1 << 20), ("pool hot", 256 << 20)] {
            let (engine, table) = open(MethodChoice::Named(method), shared_buffers, TABLE);
            assert_eq!(engine.method().used, method.as_str());
            group.throughput(Throughput::Bytes(u64::from(table.blocks()) * 8192));
            group.bench_function(format!("aggregate, {state}, {method}"), |b| {
                b.iter(|| table.scan().aggregate(&calls).expect("a sum"));
            });
        }
    }
    let (_engine, table) = open(MethodChoice::Named(MethodName::Sync), 256 << 20, TABLE);
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("text, pool hot", |b| {
        b.iter(|| table.scan().write_rows(RowFormat::Text, &mut std::io::sink()).expect("rows"));
    });
    group.bench_function("arrow batches, pool hot", |b| {
        b.iter(|| {
            let batches = table.scan().batches(BatchOptions::default()).expect("a scan");
            batches.map(|batch| batch.expect("a batch").num_rows()).sum::<usize>()
        });
    });
    group.finish();
}

criterion_group!(benches, pool, scans);
criterion_main!(benches);
