//! What people read: its links lead somewhere, and the tests it names exist. What the architecture forbids is nowhere.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Tests run in their package's directory.
const ROOT: &str = "../..";

/// Every document of the project, with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let entries = [ROOT, "../../docs"]
        .into_iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten());
    let mut all: Vec<(PathBuf, String)> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    all.sort();
    assert!(all.len() > 8, "{all:?}");
    all
}

/// A document without what is shown as code.
fn prose(text: &str) -> String {
    let mut code = false;
    let mut lines = String::new();
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        if !code && !line.trim_start().starts_with("```") {
            lines += line;
            lines.push('\n');
        }
    }
    lines
}

/// Where the links of a document lead to: what stands behind `](`.
fn links(prose: &str) -> Vec<String> {
    let targets = prose.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// A heading as forges name it in an address.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim_start_matches('#')
        .trim()
        .chars()
        .filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase)
        .map(|char| if char == ' ' { '-' } else { char })
        .collect()
}

fn has_heading(path: &Path, wanted: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let text = prose(&text);
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|heading| anchor(heading) == wanted)
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut lost = Vec::new();
    let mut seen = 0;
    for (document, text) in documents() {
        for link in links(&prose(&text)) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let there = heading.is_empty() || has_heading(&target, heading);
            if !target.exists() || !there {
                lost.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(seen > 50, "{seen} links");
}

/// Where `kennel-core/engine/slot.rs` or `sim/src/shim.rs` of a document is. `None` for what is no path of a source file, or
/// for a name without a folder.
fn source_file(name: &str) -> Option<PathBuf> {
    let is_path = name.ends_with(".rs") && !name.contains(['*', '<', ' ']);
    let (first, rest) = name.split_once('/').filter(|_| is_path)?;
    let sources = Path::new(ROOT).join("crates").join(first).join("src");
    match sources.is_dir() {
        true => {
            let inside = sources.join(rest);
            let beside = sources.with_file_name(rest);
            Some(if beside.exists() { beside } else { inside })
        }
        // Below a crate, the reader is in the folder that the text names: `server_io/snapshot.rs`.
        false => Some(Path::new(ROOT).join(name)).filter(|_| Path::new(ROOT).join(first).exists()),
    }
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let mut lost = Vec::new();
    let mut named = 0;
    for (document, text) in documents() {
        // What a former version changed may be gone.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        for name in prose(&text).split('`').skip(1).step_by(2) {
            if let Some(path) = source_file(name) {
                named += 1;
                if !path.exists() {
                    lost.push(format!("{}: {name}", document.display()));
                }
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(named > 150, "{named} files are named");
}

/// Names of functions in the sources, tests among them.
fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let rooms = [
        "crates", "examples", "bench", "chaos", "fuzz", "sim", "xtask",
    ];
    let mut dirs: Vec<PathBuf> = rooms.map(|dir| Path::new(ROOT).join(dir)).to_vec();
    while let Some(dir) = dirs.pop() {
        for path in std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()) {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let heads = text.split("fn ").skip(1);
                names.extend(
                    heads.filter_map(|head| head.split_once('(').map(|(name, _)| name.to_owned())),
                );
            }
        }
    }
    names
}

#[test]
fn every_test_that_a_document_names_exists() {
    let functions = functions();
    let is_sentence = |word: &&str| {
        // Variables of npm are spelled like sentences.
        word.matches('_').count() >= 3
            && !word.starts_with("npm_config_")
            && word
                .chars()
                .all(|char| char == '_' || char.is_ascii_lowercase() || char.is_ascii_digit())
    };
    let mut named = 0;
    for (document, text) in documents() {
        let text = prose(&text);
        for name in text.split('`').skip(1).step_by(2).filter(is_sentence) {
            named += 1;
            assert!(functions.contains(name), "{}: {name}", document.display());
        }
    }
    assert!(named > 60, "{named} tests are named");
}

#[test]
fn the_build_of_the_readme_does_without_link_time_optimization_and_dist_has_it() {
    let text = std::fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let text = |name: &str, key: &str| manifest["profile"][name][key].as_str().map(str::to_owned);
    let number = |name: &str, key: &str| manifest["profile"][name][key].as_integer();
    // The first build of a clone. Fat link-time optimization, or one unit for each crate, more than doubles its time.
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    assert!(readme.contains("cargo run --release"), "another build");
    assert_eq!(text("release", "lto").as_deref(), Some("off"));
    assert_eq!(number("release", "codegen-units"), Some(16));
    // Programs that are installed and measured.
    assert_eq!(text("dist", "lto").as_deref(), Some("fat"));
    assert_eq!(number("dist", "codegen-units"), Some(1));
}

/// The code of a crate, file by file, without its tests.
fn shipped_code(sources: &str) -> Vec<(String, String)> {
    let mut folders = vec![Path::new(ROOT).join(sources)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                // The module with a file's tests is its end.
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let path = path.strip_prefix(ROOT).unwrap().to_str().unwrap();
                files.push((path.to_owned(), code.to_owned()));
            }
        }
    }
    assert!(files.len() > 5, "{sources}: {files:?}");
    files
}

/// Lines with one of these words.
fn lines_with<'a>(code: &'a str, words: &[&str]) -> Vec<(usize, &'a str)> {
    let has_one = |line: &str| words.iter().any(|word| line.contains(word));
    let lines = code.lines().enumerate();
    let found = lines.filter(|(_, line)| has_one(line));
    found.map(|(at, line)| (at + 1, line.trim())).collect()
}

#[test]
fn only_kennel_sys_names_what_is_of_one_operating_system() {
    const WORDS: [&str; 5] = ["rustix", "libc::", "std::os::unix", "std::os::fd", "/proc"];
    let crates = ["kennel", "kennel-core", "kennel-guard"];
    let mut found = Vec::new();
    for (path, code) in crates
        .iter()
        .flat_map(|name| shipped_code(&format!("crates/{name}/src")))
    {
        for (at, line) in lines_with(&code, &WORDS) {
            found.push(format!("{path}:{at}: {line}"));
        }
    }
    assert!(
        found.is_empty(),
        "code for one operating system belongs into crates/kennel-sys, behind a function or type that other systems can \
         have, too:\n{}",
        found.join("\n")
    );
}

#[test]
fn only_drivers_that_write_lines_name_control_messages() {
    /// They put control messages into lines, or look for one answer that they wait for. What a control message means is
    /// decided by the engines.
    const WRITERS: [&str; 2] = [
        "crates/kennel/src/election/hello.rs",
        "crates/kennel/src/shim/pipes.rs",
    ];
    let mut found = Vec::new();
    for (path, code) in shipped_code("crates/kennel/src") {
        if !WRITERS.contains(&path.as_str()) {
            let lines = lines_with(&code, &["Control::"]);
            found.extend(
                lines
                    .iter()
                    .map(|(at, line)| format!("{path}:{at}: {line}")),
            );
        }
    }
    assert!(
        found.is_empty(),
        "what a control message means is decided in crates/kennel-core/src/engine; a driver hands its line over, or sends \
         what an action says. If this file only writes a control message into a line, add it to WRITERS:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_search_for_forbidden_words_finds_them() {
    let code = "use std::io;\n    let pid = libc::getpid();\n";
    assert_eq!(
        lines_with(code, &["libc::"]),
        [(2, "let pid = libc::getpid();")]
    );
    let of_system = shipped_code("crates/kennel-sys/src");
    let named = |words: &[&str]| {
        let names = |(_, code): &&(String, String)| !lines_with(code, words).is_empty();
        of_system.iter().filter(names).count()
    };
    assert!(named(&["rustix"]) > 10 && named(&["/proc"]) > 5);
}
