//! `heapscan methods`

use crate::{args, ls, print, print_json};
use heapscan::{MethodStatus, Result};
use serde_json::json;

pub(crate) fn run(args: &args::MethodsArgs) -> Result<()> {
    let all = heapscan::probe_methods();
    if args.format == args::ListFormat::Json {
        let list: Vec<_> = all
            .iter()
            .map(|m| {
                json!({"method": m.name.as_str(), "compiled_in": m.compiled_in, "usable": m.usable, "reason": m.reason})
            })
            .collect();
        return print_json(&json!({ "methods": list }));
    }
    let mut table = ls::columns(&["method", "compiled in", "usable here", "why not"]);
    let word = |yes| if yes { "yes" } else { "no" };
    for MethodStatus { name, compiled_in, usable, reason, .. } in &all {
        table.add_row([name.as_str(), word(*compiled_in), word(*usable), reason.as_deref().unwrap_or("")]);
    }
    print(&ls::lines(&table))
}
