//! Edited between wrap and unwrap: just Kennel's own change is undone, and nothing is lost.

use serde_json::Value;

use crate::stage::Person;

const CLAUDE: &str = "home/.claude.json";
/// One name in four scopes, one of them by hand.
const SCOPES: &str = r#"{
 "mcpServers": {"x": {"command": "aa", "args": ["one"]}},
 "projects": {
  "/a": {"mcpServers": {"x": {"command": "npx"}}},
  "/b": {"mcpServers": {"x": {"command": "kennel", "args": ["run", "--share", "never", "--linger", "5m", "--", "hand"]}}},
  "/c": {"mcpServers": {"x": {"command": "cc", "args": []}}}
 }
}
"#;
const CURSOR: &str = "home/.cursor/mcp.json";
const TEXT: &str = "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"thing\" },\n    \"b\": { \"command\": \"npx\", \"args\": [\"-y\", \"x\"] }\n  }\n}\n";

#[test]
fn what_was_added_since_stays() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    person.wraps();
    let edited = person.read(CURSOR).replace(
        "{\n  \"mcpServers\": {\n",
        "{\n  // new\n  \"mcpServers\": {\n    \"new\": { \"command\": \"other\" },\n",
    );
    person.write(CURSOR, &edited);
    person.unwraps();
    let wanted = TEXT.replace(
        "{\n  \"mcpServers\": {\n",
        "{\n  // new\n  \"mcpServers\": {\n    \"new\": { \"command\": \"other\" },\n",
    );
    assert_eq!(person.read(CURSOR), wanted);
}

#[test]
fn arguments_that_were_added_since_stay_with_their_server() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    person.wraps();
    let edited = person
        .read(CURSOR)
        .replace("\"x\"]", "\"x\", \"--verbose\"]")
        .replace("\"thing\"]", "\"thing\", \"now\"]");
    person.write(CURSOR, &edited);
    person.unwraps();
    let text = person.read(CURSOR);
    assert!(
        text.contains("{ \"command\": \"npx\", \"args\": [\"-y\", \"x\", \"--verbose\"] }"),
        "{text}"
    );
    assert!(
        text.contains("{ \"command\": \"thing\", \"args\": [\"now\"] }"),
        "{text}"
    );
}

#[test]
fn options_given_to_kennel_since_go_with_it() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    person.wraps();
    let edited = person
        .read(CURSOR)
        .replace("\"run\", ", "\"run\", \"--share\", \"always\", ");
    person.write(CURSOR, &edited);
    person.unwraps();
    assert_eq!(person.read(CURSOR), TEXT);
}

#[test]
fn what_somebody_wrote_by_hand_is_left_alone() {
    let person = Person::new();
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"/usr/bin/kennel\", \"args\": [\"run\", \"--share\", \"always\", \"--\", \"x\"]}}}";
    person.write(CURSOR, text);
    let ended = person.kennel(&["unwrap", "--yes"]);
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stdout.contains("not changed"), "{}", ended.stdout);
    assert_eq!(person.read(CURSOR), text);
}

#[test]
fn wrapped_again_after_an_edit_and_unwrapped_it_is_the_edited_file_without_kennel() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    person.wraps();
    let add = |text: &str| {
        text.replacen(
            "\"mcpServers\": {\n",
            "\"mcpServers\": {\n    \"new\": { \"command\": \"other\" },\n",
            1,
        )
    };
    person.write(CURSOR, &add(&person.read(CURSOR)));
    person.wraps();
    assert_eq!(person.read(CURSOR).matches("\"run\"").count(), 3);
    person.unwraps();
    assert_eq!(person.read(CURSOR), add(TEXT));
}

#[test]
fn without_a_record_kennel_is_taken_out_of_a_file_that_is_named() {
    let person = Person::new();
    let text = TEXT.replace("\"thing\" }", "\"thing\", \"args\": [] }");
    person.write(CURSOR, &text);
    person.wraps();
    std::fs::remove_dir_all(person.file("home/.local/state")).unwrap();
    let wrapped = person.read(CURSOR);
    let ended = person.kennel(&["unwrap", "--yes"]);
    assert!(
        ended.stdout.contains("--file removes it"),
        "{}",
        ended.stdout
    );
    assert_eq!(
        person.read(CURSOR),
        wrapped,
        "nothing says that it was `wrap`"
    );
    let file = person.file(CURSOR);
    let ended = person.kennel(&["unwrap", "--yes", "--file", file.to_str().unwrap()]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(person.read(CURSOR), text);
}

#[test]
fn a_kennel_that_is_gone_is_replaced_by_the_one_that_is_there() {
    let person = Person::new();
    let text = TEXT.replace(
        "\"thing\"",
        "\"/gone/bin/kennel\", \"args\": [\"run\", \"--\", \"thing\"]",
    );
    person.write(CURSOR, &text);
    person.wraps();
    let program = person.program.to_str().unwrap();
    assert_eq!(person.read(CURSOR).matches(program).count(), 2);
    person.wraps();
    assert_eq!(person.read(CURSOR).matches(program).count(), 2);
}

#[test]
fn a_dry_run_shows_and_changes_nothing() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    let ended = person.kennel(&["wrap", "--dry-run"]);
    assert_eq!(ended.code(), Some(0));
    assert_eq!(person.read(CURSOR), TEXT);
    assert!(person.kept().is_empty());
    assert!(
        ended.stdout.contains(": a @@\n-thing\n+/"),
        "{}",
        ended.stdout
    );
}

/// A hand-written entry, of which nothing tells by its words that `wrap` did not write it.
#[test]
fn a_hand_written_entry_beside_wrapped_ones_stays_and_no_diff_says_otherwise() {
    for edited in [false, true] {
        let person = Person::new();
        let text = TEXT.replace(
            "\"thing\" }",
            "\"thing\" },\n    \"mine\": { \"command\": \"kennel\", \"args\": [\"run\", \"--\", \"other\"] }",
        );
        person.write(CURSOR, &text);
        person.wraps();
        let edit = |text: &str| match edited {
            true => text.replacen('{', "{ // edited", 1),
            false => text.to_owned(),
        };
        person.write(CURSOR, &edit(&person.read(CURSOR)));
        let shown = person.kennel(&["unwrap", "--dry-run"]).stdout;
        assert!(
            !shown.contains(": mine @@") && shown.contains(": a @@"),
            "{shown}"
        );
        let ended = person.kennel(&["unwrap", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(person.read(CURSOR), edit(&text));
        // Nothing is on record any more: what looks like the work of `wrap` need not be.
        let again = person.kennel(&["unwrap", "--yes"]);
        assert_eq!(again.code(), Some(0), "{}", again.stderr);
        assert_eq!(person.read(CURSOR), edit(&text));
        let diff = |text: &str| -> Vec<String> {
            let marked = text
                .lines()
                .filter(|line| line.starts_with(['-', '+', '@']));
            marked.map(str::to_owned).collect()
        };
        assert_eq!(diff(&shown), diff(&ended.stdout));
    }
}

#[test]
fn arguments_that_wrap_added_go_however_the_file_was_edited() {
    let rewritten = |args: &str| format!("{{\"mcpServers\": {{\"a\": {{{args}}}}}}}");
    for (edited, wanted) in [
        // Another order, as an app writes it that sorts its keys.
        (
            "\"args\": [\"run\", \"--\", \"thing\"], \"command\": \"KENNEL\"",
            "\"command\": \"thing\"",
        ),
        (
            "\"command\": \"KENNEL\", \"type\": \"stdio\", \"args\": [\"run\", \"--\", \"thing\"]",
            "\"command\": \"thing\", \"type\": \"stdio\"",
        ),
        (
            "\"command\": \"KENNEL\", /* why */ \"args\": [\"run\", \"--\", \"thing\"], \"x\": 1",
            "\"command\": \"thing\", /* why */ \"x\": 1",
        ),
    ] {
        let person = Person::new();
        person.write(CURSOR, &rewritten("\"command\": \"thing\""));
        person.wraps();
        let program = person.program.to_str().unwrap();
        person.write(CURSOR, &rewritten(&edited.replace("KENNEL", program)));
        person.unwraps();
        assert_eq!(person.read(CURSOR), rewritten(wanted));
    }
    let codex = "home/.codex/config.toml";
    let goose = "home/.config/goose/config.yaml";
    for (path, before, edited, wanted) in [
        (
            codex,
            "[mcp_servers.a]\ncommand = \"thing\"\n",
            "[mcp_servers.a]\nargs = [\n  \"run\",\n  \"--\",\n  \"thing\",\n]\ncommand = \"KENNEL\"\n",
            "[mcp_servers.a]\ncommand = \"thing\"\n",
        ),
        (
            codex,
            "[mcp_servers]\na = { command = \"thing\" }\n",
            "[mcp_servers]\na = { args = [\"run\", \"--\", \"thing\"], command = \"KENNEL\" }\n",
            "[mcp_servers]\na = { command = \"thing\" }\n",
        ),
        (
            goose,
            "extensions:\n  a:\n    cmd: thing\n    type: stdio\n",
            "extensions:\n  a:\n    type: stdio\n    args:\n    - run\n    - --\n    - thing\n    cmd: KENNEL\n",
            "extensions:\n  a:\n    type: stdio\n    cmd: thing\n",
        ),
    ] {
        let person = Person::new();
        person.write(path, before);
        person.wraps();
        let program = person.program.to_str().unwrap();
        person.write(path, &edited.replace("KENNEL", program));
        person.unwraps();
        assert_eq!(person.read(path), wanted);
    }
}

#[test]
fn servers_of_one_name_in_several_scopes_are_told_apart() {
    for edited in [false, true] {
        let person = Person::new();
        person.write(CLAUDE, SCOPES);
        person.wraps();
        let edit = |text: &str| match edited {
            true => text.replacen('{', "{ // edited", 1),
            false => text.to_owned(),
        };
        person.write(CLAUDE, &edit(&person.read(CLAUDE)));
        // The record is made anew, of what it says and of what is added.
        person.wraps();
        let ended = person.kennel(&["unwrap", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let told = &ended.stdout;
        assert!(told.contains("did not wrap it"), "{told}");
        assert_eq!(person.read(CLAUDE), edit(SCOPES));
        assert!(person.kept().is_empty());
    }
}

#[test]
fn a_record_of_an_earlier_build_undoes_nothing_where_its_bare_names_are_ambiguous() {
    /// As earlier builds wrote it: by name only.
    fn with_bare_names(person: &Person) {
        let mut kept = person.kept().into_iter();
        let path = kept.find(|path| path.extension().is_some_and(|ending| ending == "json"));
        let path = path.unwrap();
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for list in ["servers", "args_added"] {
            for id in record[list].as_array_mut().unwrap() {
                *id = id.as_array().unwrap().last().unwrap().clone();
            }
        }
        std::fs::write(&path, record.to_string()).unwrap();
    }
    let person = Person::new();
    person.write(CLAUDE, SCOPES);
    person.wraps();
    with_bare_names(&person);
    let wrapped = person.read(CLAUDE);
    let ended = person.kennel(&["unwrap", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let told = &ended.stdout;
    assert!(told.contains("fewer servers of this name"), "{told}");
    assert_eq!(person.read(CLAUDE), wrapped);

    // As many as it names: all of them are meant.
    let person = Person::new();
    let lines = SCOPES.lines().filter(|line| !line.contains("hand"));
    let text = lines.collect::<Vec<_>>().join("\n");
    person.write(CLAUDE, &text);
    person.wraps();
    with_bare_names(&person);
    person.unwraps();
    let undone = text.replace("\"npx\"", "\"npx\", \"args\": []");
    assert_eq!(
        person.read(CLAUDE),
        undone,
        "whose arguments were added is not clear"
    );
}

#[test]
fn an_entry_by_hand_whose_kennel_is_gone_is_left_with_what_to_do() {
    let by_hand = |options: &str| {
        format!(r#"{{"command": "/gone/kennel", "args": ["run", {options}"--", "thing"]}}"#)
    };
    let (plain, shared) = (by_hand(""), by_hand(r#""--share", "always", "#));
    let gone = "/gone/kennel is missing, so the app cannot start it";
    for (entry, words, fix) in [
        (&plain, &["unwrap", "--yes"][..], "--file removes it"),
        (&shared, &["unwrap", "--yes"], "remove kennel by hand"),
        (
            &shared,
            &["unwrap", "--yes", "--file", "../home/.cursor/mcp.json"],
            "remove kennel by hand",
        ),
    ] {
        let person = Person::new();
        let text = format!(r#"{{"mcpServers": {{"a": {entry}}}}}"#);
        person.write(CURSOR, &text);
        let ended = person.kennel(words);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let told = &ended.stdout;
        assert!(told.contains(gone) && told.contains(fix), "{told}");
        assert!(told.contains("`kennel wrap`"), "{told}");
        assert_eq!(person.read(CURSOR), text);
    }
    // Beside one that `wrap` put behind Kennel.
    let person = Person::new();
    let other = r#""b": {"command": "thing"}"#;
    person.write(CURSOR, &format!(r#"{{"mcpServers": {{{other}}}}}"#));
    person.wraps();
    let wrapped = person.read(CURSOR);
    let with = |text: &str| text.replacen(r#""b""#, &format!(r#""a": {shared}, "b""#), 1);
    person.write(CURSOR, &with(&wrapped));
    let ended = person.kennel(&["unwrap", "--yes"]);
    let told = &ended.stdout;
    assert!(
        told.contains(gone) && told.contains("remove kennel by hand"),
        "{told}"
    );
    assert_eq!(
        person.read(CURSOR),
        with(&format!(r#"{{"mcpServers": {{{other}}}}}"#))
    );
}
