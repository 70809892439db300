//! `heapscan methods`: what works here, why not, and what to set.

use crate::{args, ls, print, print_json};
use heapscan::{IoConfig, MethodStatus, Result};
use heapscan_io::{DepthCurve, KernelFacts, Limit, depth_curve, kernel_facts, ring_facts};
use serde_json::json;
use std::{fmt::Write, time::Duration};

/// Time for all measurements of a probe.
const PROBE: Duration = Duration::from_millis(1500);

pub(crate) fn run(args: &args::MethodsArgs) -> Result<()> {
    let config = IoConfig { method: args.io_method, ..IoConfig::default() };
    let all = heapscan::probe_methods();
    let facts = kernel_facts(&config);
    let ring = ring_facts(&config);
    let curve = args.probe.as_deref().map(|path| depth_curve(path, &config, PROBE)).transpose()?;
    if args.format == args::ListFormat::Json {
        let list: Vec<_> = all
            .iter()
            .map(|m| {
                json!({"method": m.name.as_str(), "compiled_in": m.compiled_in, "usable": m.usable, "reason": m.reason})
            })
            .collect();
        let ring = match &ring {
            Ok(details) => json!(details.iter().cloned().collect::<std::collections::BTreeMap<_, _>>()),
            Err(why) => json!({ "refused": why }),
        };
        return print_json(&json!({"methods": list, "kernel": facts, "io_uring": ring, "probe": curve}));
    }
    let mut table = ls::columns(&["method", "compiled in", "usable here", "why not"]);
    let word = |yes| if yes { "yes" } else { "no" };
    for MethodStatus { name, compiled_in, usable, reason, .. } in &all {
        table.add_row([name.as_str(), word(*compiled_in), word(*usable), reason.as_deref().unwrap_or("")]);
    }
    let mut text = ls::lines(&table);
    text.push('\n');
    text.push_str(&facts_table(&facts));
    text.push('\n');
    match &ring {
        Ok(details) => {
            let mut table = ls::columns(&["io_uring", ""]);
            for (key, value) in details {
                table.add_row([key.as_str(), value.as_str()]);
            }
            text.push_str(&ls::lines(&table));
        }
        Err(why) => text.push_str(&format!("io_uring: {why}\n")),
    }
    if let Some(curve) = &curve {
        text.push('\n');
        text.push_str(&curve_text(curve));
    }
    print(&text)
}

fn facts_table(facts: &KernelFacts) -> String {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let number = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
    let limit = |value: Option<Limit>| {
        value.map_or_else(|| "unknown".to_owned(), |l| format!("{} (hard {})", number(l.soft), number(l.hard)))
    };
    let disabled = facts.io_uring_disabled.as_deref().map(|value| match value {
        "0" => "0 (allowed for everybody)".to_owned(),
        "1" => "1 (for CAP_SYS_ADMIN and kernel.io_uring_group)".to_owned(),
        "2" => "2 (off)".to_owned(),
        other => other.to_owned(),
    });
    let huge = facts.huge_pages_total.map(|total| {
        let free = facts.huge_pages_free.unwrap_or(0);
        format!("{free} free of {total}, {} kB each", facts.huge_page_bytes.unwrap_or(0) / 1024)
    });
    let mut table = ls::columns(&["kernel and limits", ""]);
    table.add_row(["kernel", &or_unknown(facts.kernel.clone())]);
    table.add_row(["CPUs", &facts.cpus.to_string()]);
    table.add_row(["kernel.io_uring_disabled", &or_unknown(disabled)]);
    table.add_row(["locked memory, bytes", &limit(facts.memlock)]);
    table.add_row(["open files", &limit(facts.nofile)]);
    table.add_row(["transparent huge pages", &or_unknown(facts.transparent_huge_pages.clone())]);
    table.add_row(["huge pages", &or_unknown(huge)]);
    ls::lines(&table)
}

fn curve_text(curve: &DepthCurve) -> String {
    let mut table = ls::columns(&["read", "in flight", "GB/s", "reads/s", "p50 us", "p99 us"]);
    for p in &curve.points {
        let micros = |nanos: u64| format!("{:.0}", nanos as f64 / 1e3);
        table.add_row([
            format!("{} kB", p.read_bytes >> 10),
            p.depth.to_string(),
            format!("{:.2}", p.bytes_per_second / 1e9),
            format!("{:.0}", p.bytes_per_second / p.read_bytes as f64),
            micros(p.latency.p50_nanos),
            micros(p.latency.p99_nanos),
        ]);
    }
    let mut text = ls::lines(&table);
    if !curve.direct {
        let why = curve.note.as_deref().unwrap_or("direct reads were refused");
        let _ = writeln!(text, "\nThese are rates of the page cache, not of the device: {why}");
    }
    let said = &curve.recommendation;
    let _ = writeln!(
        text,
        "\nrecommended: --io-method {} --effective-io-concurrency {} --io-combine-limit {}kB",
        said.io_method,
        said.effective_io_concurrency,
        said.io_combine_limit >> 10
    );
    for reason in &said.reasons {
        let _ = writeln!(text, "  {reason}");
    }
    text
}
