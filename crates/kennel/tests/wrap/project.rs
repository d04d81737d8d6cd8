//! A project's files, which others may have too; and many files at once.

use crate::stage::Person;

const CURSOR: &str = "home/.cursor/mcp.json";
const PROJECT: &str = "project/.mcp.json";
const TEXT: &str = "{\"mcpServers\": {\"a\": {\"command\": \"thing\"}}}\n";

#[test]
fn a_projects_file_under_version_control_is_skipped_unless_asked_for_and_names_no_path() {
    for repository in [".git", ".jj", ".hg", ".svn"] {
        skipped_unless_asked_for(repository);
    }
}

fn skipped_unless_asked_for(repository: &str) {
    let person = Person::new();
    person.write(PROJECT, TEXT);
    person.write(CURSOR, TEXT);
    std::fs::create_dir(person.file(&format!("project/{repository}"))).unwrap();
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(person.read(PROJECT), TEXT);
    assert!(person.read(CURSOR).contains("\"run\""));
    let told = &ended.stdout;
    assert!(
        told.contains("skipped") && told.contains("--project"),
        "{told}"
    );
    // Nor does its absence: nothing is there to be taken away.
    person.unwraps();
    assert_eq!(person.read(CURSOR), TEXT);

    let ended = person.kennel(&["wrap", "--yes", "--project"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let wrapped = person.read(PROJECT);
    assert!(wrapped.contains("\"command\": \"kennel\""), "{wrapped}");
    assert!(
        !wrapped.contains(person.home().to_str().unwrap()),
        "{wrapped}"
    );
    assert!(
        person
            .read(CURSOR)
            .contains(person.program.to_str().unwrap())
    );
    // What was wrapped is known, and needs no option.
    person.wraps();
    assert_eq!(person.read(PROJECT), wrapped);
    person.unwraps();
    assert_eq!(person.read(PROJECT), TEXT);
}

#[test]
fn a_projects_file_that_is_named_is_asked_for() {
    let person = Person::new();
    let file = person.write(PROJECT, TEXT);
    std::fs::create_dir(person.file("project/.git")).unwrap();
    let ended = person.kennel(&["wrap", "--yes", "--file", file.to_str().unwrap()]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(person.read(PROJECT).contains("\"command\": \"kennel\""));
}

#[test]
fn a_dry_run_of_many_files_is_short_and_ends_with_a_total() {
    let person = Person::new();
    let many: String = (0..10)
        .map(|at| format!("\"s{at}\": {{\"command\": \"thing{at}\"}},"))
        .collect();
    let memory =
        "\"memory\": {\"command\": \"npx\", \"args\": [\"@modelcontextprotocol/server-memory\"]}";
    let text = format!("{{\"mcpServers\": {{{many}{memory}}}}}");
    let places = [
        CURSOR,
        "home/.claude.json",
        "home/.gemini/settings.json",
        "home/.codeium/windsurf/mcp_config.json",
        "home/.copilot/mcp-config.json",
        "home/.config/Claude/claude_desktop_config.json",
        "home/.cline/data/settings/cline_mcp_settings.json",
    ];
    for place in places {
        person.write(place, &text);
    }
    let ended = person.kennel(&["wrap", "--dry-run"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let told = &ended.stdout;
    assert!(told.lines().count() <= 2 * places.len() + 4, "{told}");
    assert!(told.contains("shared: memory; solo: s0, s1"), "{told}");
    let total = "7 files: 7 change; 77 servers: 7 shared, 70 solo, 0 skip";
    assert!(told.contains(total), "{told}");
    let told = person.kennel(&["wrap", "--dry-run", "--diff"]).stdout;
    assert_eq!(told.matches("@@ line ").count(), 77, "{told}");
    assert!(told.contains(total), "{told}");
}
