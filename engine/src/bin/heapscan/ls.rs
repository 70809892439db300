//! `heapscan ls`

use crate::{args, open, print, print_json};
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use heapscan::{
    Result,
    cluster::{DatabaseInfo, TableEntry},
};
use serde_json::json;

pub(crate) fn run(args: &args::LsArgs) -> Result<()> {
    let engine = open(&args.cluster)?;
    let databases = engine.databases()?;
    let user = |d: &&DatabaseInfo| !d.is_template && d.name != "postgres" && d.has_folder;
    if args.cluster.database.is_none() && databases.iter().filter(user).count() > 1 {
        return list_databases(&databases, args.format);
    }
    let database = engine.database(args.cluster.database.as_deref())?;
    let tables: Vec<TableEntry> = database.tables().into_iter().filter(|t| args.all || is_user_table(t)).collect();
    match args.format {
        args::ListFormat::Json => {
            let control = engine.cluster().control();
            let tables: Vec<_> = tables.iter().map(table_json).collect();
            print_json(&json!({
                "pgdata": engine.cluster().path(),
                "version": control.major_version,
                "system_identifier": control.system_identifier.to_string(),
                "state": control.state.as_str(),
                "block_size": control.block_size,
                "database": database.info().name,
                "tables": tables,
            }))
        }
        args::ListFormat::Table => {
            let mut table = columns(&["schema", "name", "kind", "oid", "blocks", "bytes", "rows (estimate)", "note"]);
            for index in 3..7 {
                align_right(&mut table, index);
            }
            for t in &tables {
                table.add_row([
                    t.schema.clone(),
                    t.name.clone(),
                    t.kind.to_string(),
                    t.oid.to_string(),
                    t.blocks.map_or_else(String::new, |b| b.to_string()),
                    t.bytes.map_or_else(String::new, |b| b.to_string()),
                    t.tuples.map_or_else(String::new, |n| format!("{n:.0}")),
                    t.note.clone().unwrap_or_default(),
                ]);
            }
            print(&lines(&table))
        }
    }
}

fn list_databases(databases: &[DatabaseInfo], format: args::ListFormat) -> Result<()> {
    if format == args::ListFormat::Json {
        let list: Vec<_> = databases
            .iter()
            .map(|d| json!({"name": d.name, "oid": d.oid, "template": d.is_template, "has_folder": d.has_folder}))
            .collect();
        return print_json(&json!({ "databases": list }));
    }
    let mut table = columns(&["database", "oid", "note"]);
    align_right(&mut table, 1);
    for d in databases {
        let note = match (d.is_template, d.has_folder) {
            (_, false) => "its folder is missing",
            (true, _) => "template",
            _ => "",
        };
        table.add_row([d.name.clone(), d.oid.to_string(), note.to_owned()]);
    }
    print(&lines(&table))
}

fn is_user_table(table: &TableEntry) -> bool {
    let system = matches!(table.schema.as_str(), "pg_catalog" | "information_schema" | "pg_toast");
    // What sessions left behind when they were killed.
    let temporary = table.schema.starts_with("pg_temp_") || table.schema.starts_with("pg_toast_temp_");
    table.kind.has_rows() && !system && !temporary
}

fn table_json(t: &TableEntry) -> serde_json::Value {
    json!({
        "schema": t.schema, "name": t.name, "oid": t.oid, "kind": t.kind.to_string(), "path": t.path,
        "blocks": t.blocks, "bytes": t.bytes, "rows_estimate": t.tuples, "note": t.note,
    })
}

/// A table without lines, for people and for `awk` alike.
pub(crate) fn columns(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    table
}

pub(crate) fn align_right(table: &mut Table, index: usize) {
    if let Some(column) = table.column_mut(index) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// The table as text, without blanks at the ends of lines.
pub(crate) fn lines(table: &Table) -> String {
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
