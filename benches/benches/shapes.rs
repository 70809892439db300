//! Decoding by the shape of the tuples, filters, text of single values; read streams without delay.
#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use heapscan::{
    Engine, EngineOptions, FaultPlan, HugePages, MethodChoice, MethodName, Predicate, aggregate,
    heap::PageColumns,
    pool::Strategy,
    stream::{ReadStream, StreamOptions},
};
use heapscan_benches::{open, shapes, snapshot};
use std::{hint::black_box, sync::Arc};

/// 1 MB of each: what stays in a core's cache.
const PAGES: u32 = 128;

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("shape");
    for shape in shapes::shapes(PAGES) {
        group.throughput(Throughput::Elements(shape.rows));
        group.bench_function(format!("validate, {}", shape.name), |b| b.iter(|| black_box(&shape).validate()));
        let (plan, pages) = (shape.plan(), shape.pages());
        let mut columns = PageColumns::default();
        group.bench_function(format!("deform, {}", shape.name), |b| {
            b.iter(|| shapes::deform(&plan, black_box(&pages), &mut columns));
        });
    }
    group.finish();
}

fn text(c: &mut Criterion) {
    let mut group = c.benchmark_group("text");
    group.throughput(Throughput::Elements(1000));
    for (name, output, values) in shapes::printed(1000) {
        let mut out = Vec::new();
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                values.iter().for_each(|value| output.write(value, &mut out).expect("a value"));
                out.len()
            });
        });
    }
    group.finish();
}

fn filters(c: &mut Criterion) {
    let (_engine, table) = open(MethodChoice::Named(MethodName::Sync), 64 << 20, "pgbench_accounts");
    let count = aggregate::parse("count(*)").expect("a list");
    let mut group = c.benchmark_group("filter, pool hot");
    group.throughput(Throughput::Elements(100_000));
    for text in ["aid > 50000", "aid between 100 and 200 or bid <> 1", "filler like '%x%'"] {
        let filter = Predicate::parse(text).expect("a predicate");
        group.bench_function(text, |b| {
            b.iter(|| table.scan().filter(filter.clone()).aggregate(&count).expect("a count"));
        });
    }
    group.finish();
}

/// The stream alone, over reads that are handed through the fault method with nothing to fault.
fn stream(c: &mut Criterion) {
    let mut options = EngineOptions { shared_buffers: 4 << 20, huge_pages: HugePages::Off, ..EngineOptions::default() };
    options.io.method = MethodChoice::Named(MethodName::Sync);
    options.io.fault = Some("seed=1".parse::<FaultPlan>().expect("a plan"));
    let engine = Engine::open(snapshot().data_dir(), options).expect("open");
    let table = engine.database(Some("pgbench")).and_then(|d| d.table("pgbench_accounts")).expect("a table");
    let pool = engine.pool();
    let relation = pool.register(Arc::clone(table.fork())).expect("registered");
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Elements(table.blocks().into()));
    group.bench_function("blocks through the fault method, no delay", |b| {
        b.iter(|| {
            let options = StreamOptions::new(pool.config(), Strategy::Normal);
            let mut stream = ReadStream::new(Arc::clone(pool), relation, 0..table.blocks(), options).expect("a stream");
            let mut blocks = 0;
            while let Some(page) = stream.next_page() {
                blocks += black_box(page.expect("read").block());
            }
            blocks
        });
    });
    group.finish();
}

criterion_group!(benches, decode, text, filters, stream);
criterion_main!(benches);
