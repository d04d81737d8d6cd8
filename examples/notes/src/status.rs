//! `notes status`: the store's files, and who has it open. Creates nothing.

use std::io::{self, Write as _};

use kennel_guard::{GuardBuilder, HeldAt};
use serde_json::json;

use crate::cli;
use crate::failure::Failure;
use crate::inventory::Inventory;
use crate::place::Place;

pub(crate) fn run(args: &cli::Status, guard: GuardBuilder) -> Result<(), Failure> {
    let place = Place::of(&args.store)?;
    let guard = place.guarded_by(guard);
    let held = guard.probe().map_err(Failure::failed)?;
    let inventory = Inventory::of(&place, &guard)?;
    let shown = match args.json {
        true => show_json(&place, &inventory, &held),
        false => show(&place, &inventory, &held),
    };
    shown.map_err(|error| Failure::failed(format!("cannot write to stdout: {error}")))
}

fn show(place: &Place, inventory: &Inventory, held: &[HeldAt]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "store: {place}")?;
    write!(out, "{inventory}")?;
    if held.is_empty() {
        return writeln!(out, "free: no process has it open");
    }
    for held in held {
        writeln!(out, "{held}")?;
    }
    Ok(())
}

fn show_json(place: &Place, inventory: &Inventory, held: &[HeldAt]) -> io::Result<()> {
    let held: Vec<_> = held
        .iter()
        .map(|held| {
            json!({
                "place": held.place,
                "legacy": held.legacy,
                "pid": held.holder.as_ref().map(|holder| holder.process.pid()),
                "message": held.to_string(),
            })
        })
        .collect();
    let status = json!({
        "store": place.db,
        "free": held.is_empty(),
        "held": held,
        "files": inventory,
    });
    writeln!(io::stdout(), "{status}")
}
