//! Edited between wrap and unwrap: just Kennel's own change is undone, and nothing is lost.

use crate::stage::Person;

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
    assert!(
        ended.stdout.contains("options of your own"),
        "{}",
        ended.stdout
    );
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
fn without_a_backup_kennel_is_still_taken_away() {
    let person = Person::new();
    let text = TEXT.replace("\"thing\" }", "\"thing\", \"args\": [] }");
    person.write(CURSOR, &text);
    person.wraps();
    std::fs::remove_dir_all(person.file("home/.local/state")).unwrap();
    person.unwraps();
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
        ended.stdout.contains("+    \"a\": { \"command\": \"/"),
        "{}",
        ended.stdout
    );
}
