//! Kennel before every server of a configuration, and away again: as it was, or refused.
//!
//! The first byte says which shape the rest is: a letter of [`SHAPES`].

use std::path::Path;

use serde_json::json;

use crate::sharing::ServersToml;
use crate::wrap::clients::Shape;
use crate::wrap::entry::{Entry, apply};
use crate::wrap::places::FoundConfig;
use crate::wrap::plan::{self, Setting};
use crate::wrap::shapes::Root;
use crate::wrap::undo;
use crate::wrap::yaml::Kind;

const SHAPES: &[(u8, Shape)] = &[
    (b'm', Shape::Json(Root::McpServers)),
    (b's', Shape::Json(Root::Servers)),
    (b'z', Shape::Json(Root::ContextServers)),
    (b'o', Shape::Json(Root::Mcp)),
    (b'j', Shape::AnyJson),
    (b't', Shape::Toml),
    (b'g', Shape::Yaml(Kind::Extensions)),
    (b'c', Shape::Yaml(Kind::McpServers)),
];

pub(super) fn check(bytes: &[u8]) {
    let Some((letter, rest)) = bytes.split_first() else {
        return;
    };
    let shape = SHAPES.iter().find(|(it, _)| it == letter);
    let (Some((_, shape)), Ok(text)) = (shape, str::from_utf8(rest)) else {
        return;
    };
    goes_there_and_back(text, *shape);
}

fn goes_there_and_back(text: &str, shape: Shape) {
    let found = FoundConfig {
        client: None,
        path: "/home/me/.cursor/mcp.json".into(),
        shape: Some(shape),
        project: false,
    };
    let setting = Setting {
        program: "/usr/local/bin/kennel",
        home: Path::new("/home/me"),
        config: &ServersToml::default(),
    };
    let Ok(plan) = plan::of(text, shape, &found, setting) else {
        return;
    };
    if plan.changed.is_empty() {
        let repointed = !plan.edits.is_empty();
        assert!(repointed || plan.result == text, "changed for nothing");
        return;
    }
    let before = shape.entries(text).expect("it was read already");
    // Behind a Kennel that somebody else put there: what was before that, nobody wrote down.
    if before
        .iter()
        .any(|entry| entry.command().is_some_and(|it| it[0].contains("kennel")))
    {
        return;
    }
    let record = json!({
        "path": found.path, "wrapped": "", "original": "",
        "servers": plan.changed, "args_added": plan.args_added,
    });
    let record = serde_json::from_value(record).expect("a record");
    let undoing = undo::own_change(&plan.result, shape, Some(&record)).expect("what we wrote");
    assert!(undoing.left.is_empty(), "it is ours");
    let back = apply(&plan.result, &undoing.edits);
    let after = shape.entries(&back).expect("what was there before");
    assert_eq!(meaning(&after), meaning(&before), "{back}");
    if !matches!(shape, Shape::Yaml(_)) && are_distinct(&before) {
        assert_eq!(back, text);
    }
}

fn meaning(entries: &[Entry]) -> Vec<(String, Option<Vec<String>>, Vec<String>)> {
    let told = |entry: &Entry| (entry.name.clone(), entry.command(), entry.env.clone());
    entries.iter().map(told).collect()
}

/// Of two at one path, which had no arguments is not written down; the backup knows.
fn are_distinct(entries: &[Entry]) -> bool {
    let mut paths: Vec<&[String]> = entries.iter().map(|entry| &*entry.path).collect();
    paths.sort_unstable();
    paths.windows(2).all(|pair| pair[0] != pair[1])
}
