//! The MCP session: handshake, tools, and errors that say what is wrong.

use kennel_testkit::{Client, Scope};
use serde_json::{Value, json};

use crate::common::{notes, serving};

#[test]
fn the_handshake_agrees_on_the_version_that_was_asked_for() {
    let scope = Scope::new("handshake");
    let mut server = Client::start(&mut notes(&scope, "serve", scope.path("notes.db")));
    let answer = server.initialize();
    assert_eq!(answer["protocolVersion"], "2025-06-18");
    assert_eq!(answer["serverInfo"]["name"], "notes");
    assert!(answer["capabilities"]["tools"].is_object(), "{answer}");
}

#[test]
fn the_tools_say_what_may_be_repeated() {
    let scope = Scope::new("annotations");
    let mut server = serving(&scope, scope.path("notes.db"));
    let answer = server.request("tools/list", json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let hints = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        let hint = |hint: &str| tool["annotations"][hint] == json!(true);
        (hint("readOnlyHint"), hint("idempotentHint"))
    };
    assert_eq!(tools.len(), 5);
    assert_eq!(hints("add_note"), (false, false));
    assert_eq!(hints("put_note"), (false, true));
    assert_eq!(hints("get_note"), (true, false));
    assert_eq!(hints("list_notes"), (true, false));
    assert_eq!(hints("search_notes"), (true, false));
}

#[test]
fn a_note_can_be_read_listed_and_found() {
    let scope = Scope::new("tools");
    let mut server = serving(&scope, scope.path("notes.db"));
    let first = json!({ "id": 1, "title": "Shopping", "text": "milk, 50% less sugar" });
    let second = json!({ "id": 2, "text": "call Ada" });

    assert_eq!(
        content(
            &mut server,
            "add_note",
            json!({ "title": "Shopping", "text": "milk, 50% less sugar" })
        ),
        json!({ "id": 1 })
    );
    assert_eq!(
        content(&mut server, "add_note", json!({ "text": "call Ada" })),
        json!({ "id": 2 })
    );

    assert_eq!(content(&mut server, "get_note", json!({ "id": 1 })), first);
    assert_eq!(
        content(&mut server, "list_notes", json!({})),
        json!({ "notes": [second, first], "total": 2 })
    );
    assert_eq!(
        content(&mut server, "list_notes", json!({ "limit": 1 })),
        json!({ "notes": [second], "total": 2 })
    );
    for query in ["SHOP", "50%", "sugar"] {
        assert_eq!(
            content(&mut server, "search_notes", json!({ "query": query })),
            json!({ "notes": [first], "total": 1 }),
            "{query}"
        );
    }
    assert_eq!(
        content(&mut server, "search_notes", json!({ "query": "5_%" })),
        json!({ "notes": [], "total": 0 })
    );
}

#[test]
fn putting_a_note_twice_is_as_good_as_once() {
    let scope = Scope::new("put");
    let mut server = serving(&scope, scope.path("notes.db"));
    let put = json!({ "key": "todo", "text": "water the plants" });
    let once = content(&mut server, "put_note", put.clone());
    let listed = content(&mut server, "list_notes", json!({}));
    let twice = content(&mut server, "put_note", put);
    assert_eq!(once, twice);
    assert_eq!(content(&mut server, "list_notes", json!({})), listed);

    let other = json!({ "key": "todo", "text": "nothing" });
    assert_eq!(content(&mut server, "put_note", other), once);
    assert_eq!(content(&mut server, "get_note", once)["text"], "nothing");
}

#[test]
fn what_cannot_be_done_is_a_tool_error_that_says_why() {
    let scope = Scope::new("errors");
    let mut server = serving(&scope, scope.path("notes.db"));
    for (tool, arguments, why) in [
        ("get_note", json!({ "id": 42 }), "no note 42"),
        ("get_note", json!({ "id": "x" }), "i64"),
        ("add_note", json!({ "text": " " }), "text is empty"),
        ("add_note", json!({}), "missing field `text`"),
        (
            "put_note",
            json!({ "key": "", "text": "x" }),
            "key is empty",
        ),
        ("search_notes", json!({ "query": "" }), "query is empty"),
    ] {
        let result = server.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(why), "{tool}: {text}");
    }
    let answer = server.request(
        "tools/call",
        json!({ "name": "burn_notes", "arguments": {} }),
    );
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[test]
fn a_file_that_is_not_ours_is_left_as_it_is() {
    let scope = Scope::new("foreign");
    let sqlite = |name: &str, script: &str| {
        let db = rusqlite::Connection::open(scope.path(name)).unwrap();
        db.execute_batch(script).unwrap();
    };
    std::fs::write(scope.path("diary"), "a diary, and not a database at all").unwrap();
    sqlite("accounts.db", "CREATE TABLE accounts (owner TEXT)");
    sqlite(
        "newer.db",
        "CREATE TABLE notes (all_new BLOB); PRAGMA application_id = 0x6e6f7465; PRAGMA user_version = 2",
    );
    for (name, why) in [
        ("diary", "not a database"),
        ("accounts.db", "another program"),
        ("newer.db", "update notes"),
    ] {
        let path = scope.path(name);
        let before = std::fs::read(&path).unwrap();
        let mut server = serving(&scope, &path);
        for (tool, arguments) in [
            ("list_notes", json!({})),
            ("add_note", json!({ "text": "x" })),
        ] {
            let result = server.call(tool, arguments);
            assert_eq!(result["isError"], true, "{result}");
            let text = result["content"][0]["text"].as_str().unwrap();
            assert!(text.contains(name) && text.contains(why), "{text}");
        }
        server.close();
        assert!(server.wait().status.success());
        assert_eq!(std::fs::read(&path).unwrap(), before, "{name}");
    }
}

#[test]
fn what_was_piped_in_before_an_immediate_eof_is_answered_in_order_and_quietly() {
    let scope = Scope::new("eof");
    let mut server = Client::start(&mut notes(&scope, "serve", scope.path("notes.db")));
    server.initialize();
    let calls: Vec<u64> = (0..100)
        .map(|number| {
            let arguments = json!({ "text": format!("note {number}") });
            server.send(
                "tools/call",
                json!({ "name": "add_note", "arguments": arguments }),
            )
        })
        .collect();
    server.close();
    let ended = server.wait();
    let answers: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (number, id) in calls.iter().enumerate() {
        let mut own = answers.iter().filter(|answer| answer["id"] == *id);
        let answer = own
            .next()
            .unwrap_or_else(|| panic!("request {id} was not answered"));
        assert_eq!(answer["result"]["structuredContent"]["id"], number + 1);
        assert!(
            own.next().is_none(),
            "request {id} was answered twice (rule 4)"
        );
    }
    assert!(ended.status.success());
    // Lesson 40: an ordinary session says nothing.
    assert_eq!(ended.stderr, "");
}

#[test]
fn an_app_that_closes_before_the_handshake_is_no_error() {
    let scope = Scope::new("silent");
    let mut server = Client::start(&mut notes(&scope, "serve", scope.path("notes.db")));
    server.close();
    let ended = server.wait();
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
}

/// The structured content of a call that worked.
#[track_caller]
fn content(server: &mut Client, tool: &str, arguments: Value) -> Value {
    let result = server.call(tool, arguments);
    assert_eq!(result["isError"], false, "{tool}: {result}");
    result["structuredContent"].clone()
}
