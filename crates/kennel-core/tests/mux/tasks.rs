//! Tasks belong to the session that began them.

use kennel_core::mux::{ClientId, Note, Unaddressed};

use crate::play::{
    INITIALIZED, Play, call, cancel, initialize, modern, notice, progress, reason, refusal,
    request, result,
};

/// A client begins a task.
fn begin(play: &mut Play, client: u64, task: &str) {
    let minted = play.asks(client, &call("\"begin\"", "a"));
    let answer = format!(r#"{{"task":{{"taskId":"{task}","status":"working"}}}}"#);
    play.server(&result(&minted, &answer));
    assert_eq!(play.heard(client), [result("\"begin\"", &answer)]);
}

fn about(id: &str, method: &str, task: &str) -> String {
    request(id, method, &format!(r#"{{"taskId":"{task}"}}"#))
}

fn status(task: &str, status: &str) -> String {
    let params = format!(r#"{{"taskId":"{task}","status":"{status}"}}"#);
    notice("notifications/tasks/status", &params)
}

fn ask_about(id: &str, task: &str) -> String {
    let params =
        format!(r#"{{"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{task}"}}}}}}"#);
    request(id, "elicitation/create", &params)
}

#[test]
fn a_task_of_another_session_is_no_task() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        play.client(2, &about("1", method, "t"));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
        assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
        let minted = play.asks(1, &about("1", method, r"\u0074"));
        play.server(&result(&minted, "{}"));
        assert_eq!(play.heard(1), [result("1", "{}")]);
    }
}

#[test]
fn a_task_that_nobody_owns_yet_may_be_anybodys() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
        play.client(2, &about("1", method, "t"));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        play.nobody_hears();
    }
    play.server(&result(&minted, r#"{"task":{"taskId":"t"}}"#));
    play.forget();
    play.asks(1, &about("1", "tasks/get", "t"));

    // Alone, a session may ask for what it likes; the answer is not its, once it may be another's.
    for is_begun in [true, false] {
        let mut play = Play::legacy(1);
        let asked = play.asks(1, &about("1", "tasks/result", "t"));
        play.enter(2);
        play.forget();
        if is_begun {
            begin(&mut play, 2, "t");
        }
        play.server(&result(&asked, r#"{"content":"secret"}"#));
        assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32602));
        play.nobody_hears();
        assert_eq!(play.notes(), [Note::ForeignTask(ClientId(1))]);
        if is_begun {
            // It was not the answer to its owner: the task goes on.
            play.asks(1, &call("2", "a"));
            play.server(&request("0", "sampling/createMessage", "{}"));
            assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client");
        }
    }
    let mut play = Play::legacy(1);
    let asked = play.asks(1, &about("1", "tasks/get", "unknown"));
    play.server(&result(&asked, "{}"));
    assert_eq!(play.heard(1), [result("1", "{}")]);
}

fn related(params: &str, task: &str) -> String {
    let key = "io.modelcontextprotocol/related-task";
    format!(r#"{{{params}"_meta":{{"{key}":{task}}}}}"#)
}

const T: &str = r#"{"taskId":"t"}"#;

#[test]
fn what_the_server_says_about_a_task_is_its_owners() {
    let mut play = Play::legacy(3);
    begin(&mut play, 1, "t");
    let subscribe = |id| request(id, "resources/subscribe", r#"{"uri":"a://b"}"#);
    for client in [1, 2] {
        play.client(client, &subscribe("8"));
    }
    play.forget();
    for (method, params) in [
        (
            "notifications/message",
            r#""level":"info","data":"secret","#,
        ),
        ("notifications/whatever", ""),
        ("notifications/resources/updated", r#""uri":"a://b","#),
    ] {
        let line = notice(method, &related(params, T));
        play.server(&line);
        assert_eq!(play.heard(1), [line]);
        play.nobody_hears();
        for other in [r#"{"taskId":"who?"}"#, r#"{"taskId":["t"]}"#, "{}"] {
            play.server(&notice(method, &related(params, other)));
            play.nobody_hears();
            assert_eq!(play.notes().len(), 1, "{method} {other}");
        }
    }
    // What tools there are is of all.
    let line = notice("notifications/tools/list_changed", &related("", T));
    play.server(&line);
    for client in [1, 2, 3] {
        assert_eq!(play.heard(client), [&line[..]]);
    }
}

#[test]
fn what_a_modern_server_says_about_a_task_is_its_owners() {
    let mut play = Play::modern(2);
    let minted = play.asks(1, &modern("1", "tools/call", ""));
    play.server(&result(&minted, r#"{"resultType":"task","taskId":"t"}"#));
    let log = r#","_meta":{"io.modelcontextprotocol/logLevel":"info","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let params = format!("{{{}}}", &log[1..]);
    for client in [2, 1] {
        play.forget();
        let minted = play.asks(client, &request("2", "tools/call", &params));
        let line = notice("notifications/message", &related(r#""level":"info","#, T));
        play.server(&line);
        assert_eq!(play.heard(client).len(), usize::from(client == 1));
        play.nobody_hears();
        play.server(&result(&minted, "{}"));
    }
    play.forget();
    let listen = play.asks(2, &modern("9", "subscriptions/listen", ""));
    let name = "io.modelcontextprotocol/subscriptionId";
    let key = "io.modelcontextprotocol/related-task";
    let of_task = |task: &str| {
        notice(
            "notifications/resources/updated",
            &format!(r#"{{"_meta":{{"{name}":{listen},"{key}":{{"taskId":"{task}"}}}}}}"#),
        )
    };
    play.server(&of_task("t"));
    play.nobody_hears();
    // Of one that is not known yet, it may not hear how it goes either.
    let status = format!(r#"{{"_meta":{{"{name}":{listen}}},"taskId":"who?"}}"#);
    play.server(&notice("notifications/tasks", &status));
    play.nobody_hears();
}

#[test]
fn nobody_says_that_something_belongs_to_the_task_of_another_session() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    let others = [T, r#"{"taskId":"who?"}"#, r#"{"taskId":["t"]}"#, "[]"];
    for task in others {
        let params = related(r#""name":"x","#, task);
        for method in ["tools/call", "prompts/get", "tools/list", "whatever"] {
            play.client(2, &request("1", method, &params));
            assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
        }
        play.notes();
        for method in [
            "notifications/message",
            "notifications/whatever",
            "notifications/cancelled",
            "notifications/initialized",
            "notifications/progress",
            "notifications/roots/list_changed",
        ] {
            play.client(2, &notice(method, &params));
            assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
        }
        play.nobody_hears();
    }
    let params = related(r#""name":"x","#, T);
    play.asks(1, &request("1", "tools/call", &params));
    play.client(1, &notice("notifications/whatever", &params));
    assert_eq!(play.server_heard().len(), 1);
}

#[test]
fn an_answer_that_names_the_task_of_another_session_is_an_error_to_the_server() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.asks(2, &call("1", "a"));
    play.client(1, &cancel("\"none\""));
    play.server(&status("t", "completed"));
    play.forget();
    play.server(&request("0", "elicitation/create", "{}"));
    let asked = play.is_asked(2);
    play.client(2, &result(&asked, &related(r#""action":"accept","#, T)));
    assert_eq!(refusal(&play.server_heard()[0]), ("0".into(), -32602));
    assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
    play.server(&request("0", "elicitation/create", "{}"));
    let asked = play.is_asked(2);
    play.client(2, &result(&asked, r#"{"action":"accept"}"#));
    assert_eq!(play.server_heard(), [result("0", r#"{"action":"accept"}"#)]);
}

#[test]
fn a_request_about_a_task_names_it_where_the_protocol_says() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
        for params in [r#"["t"]"#, r#"{"task":{"taskId":"t"}}"#, "{}"] {
            play.client(2, &request("1", method, params));
            assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
            play.nobody_hears();
        }
    }
}

#[test]
fn who_works_on_a_task_for_the_server_may_name_it() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&request("0", "sampling/createMessage", "{}"));
    let asked = play.is_asked(1);
    play.client(1, &result(&asked, r#"{"task":{"taskId":"t"}}"#));
    play.forget();
    let line = notice("notifications/whatever", &related("", T));
    play.client(1, &line);
    assert_eq!(play.server_heard(), [&line[..]]);
    play.server(&line);
    assert_eq!(play.heard(1), [&line[..]]);
    play.client(2, &line);
    play.client(2, &status("other", "completed"));
    play.nobody_hears();
}

#[test]
fn a_task_of_a_call_that_was_forgotten_is_nobodys() {
    let mut play = Play::legacy(2);
    let first = play.asks(1, &call("1", "a"));
    play.client(1, &cancel("1"));
    for _ in 0..1024 {
        play.client(1, &call("1", "a"));
        play.client(1, &cancel("1"));
    }
    play.forget();
    play.server(&result(&first, r#"{"task":{"taskId":"t"}}"#));
    for client in [1, 2] {
        play.client(client, &about("1", "tasks/get", "t"));
        assert_eq!(refusal(&play.heard(client)[0]), ("1".into(), -32602));
    }
    play.nobody_hears();
}

#[test]
fn each_session_lists_its_own_tasks() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "a");
    begin(&mut play, 2, "b");
    let list = |tasks: &str| format!(r#"{{ "tasks" :[{tasks}], "nextCursor":"c","x":1.0}}"#);
    let all = r#"{"taskId":"a","ttl":1.0}, {"taskId":"b"},{"taskId":"who?"} , {"taskId":"\u0061"}"#;
    let minted = play.asks(1, &request("1", "tasks/list", "{}"));
    play.server(&result(&minted, &list(all)));
    let own = list(r#"{"taskId":"a","ttl":1.0},{"taskId":"\u0061"}"#);
    assert_eq!(play.heard(1), [result("1", &own)]);
    let minted = play.asks(2, &request("1", "tasks/list", "{}"));
    play.server(&result(&minted, &list(r#" {"taskId":"b"} "#)));
    assert_eq!(
        play.heard(2),
        [result("1", &list(r#" {"taskId":"b"} "#))],
        "to the byte"
    );
}

#[test]
fn the_status_of_a_task_is_its_owners() {
    let mut play = Play::legacy(2);
    begin(&mut play, 2, "t");
    play.server(&status("t", "working"));
    assert_eq!(play.heard(2), [status("t", "working")]);
    play.server(&status("who?", "working"));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::Unaddressed(Unaddressed::Task)]);
}

#[test]
fn progress_goes_on_under_the_token_of_the_request_until_the_task_ends() {
    let mut play = Play::legacy(2);
    let params = r#"{"_meta":{"progressToken":"p"}}"#;
    let minted = play.asks(1, &request("1", "tools/call", params));
    play.server(&result(
        &minted,
        r#"{"task":{"taskId":"t","status":"working"}}"#,
    ));
    play.forget();
    play.server(&progress(&minted));
    assert_eq!(play.heard(1), [progress("\"p\"")]);
    play.server(&status("t", "completed"));
    play.forget();
    play.server(&progress(&minted));
    play.nobody_hears();
}

#[test]
fn a_question_about_a_task_is_its_owners_whoever_else_is_busy() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.asks(2, &call("1", "b"));
    play.server(&ask_about("0", "t"));
    play.is_asked(1);
    play.nobody_hears();

    play.leave(1);
    play.forget();
    play.server(&ask_about("1", "t"));
    assert_eq!(reason(&play.server_heard()[0]), "client_gone");
    play.nobody_hears();
}

#[test]
fn a_task_that_may_go_on_may_be_what_the_server_asks_about() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.asks(2, &call("1", "b"));
    play.server(&request("0", "sampling/createMessage", "{}"));
    assert_eq!(reason(&play.server_heard()[0]), "ambiguous_client");

    for end in ["completed", "failed", "cancelled"] {
        let mut play = Play::legacy(2);
        begin(&mut play, 1, "t");
        play.asks(2, &call("1", "b"));
        play.server(&status("t", end));
        play.forget();
        play.server(&request("0", "sampling/createMessage", "{}"));
        play.is_asked(2);
        play.nobody_hears();
    }
}

#[test]
fn who_is_told_how_a_task_ended_knows_that_it_did() {
    let told = r#"{"taskId":"t","status":"completed"}"#;
    for (method, answer) in [
        ("tasks/get", told),
        ("tasks/cancel", told),
        ("tasks/result", "{}"),
    ] {
        let mut play = Play::legacy(2);
        begin(&mut play, 1, "t");
        let minted = play.asks(1, &about("1", method, "t"));
        play.server(&result(&minted, answer));
        play.asks(2, &call("1", "b"));
        play.forget();
        play.server(&request("0", "sampling/createMessage", "{}"));
        play.is_asked(2);
    }
}

#[test]
fn a_session_that_comes_back_owns_its_tasks_again() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    play.leave(1);
    play.mux.join(ClientId(7), "session 1");
    play.client(7, &initialize("0"));
    play.client(7, INITIALIZED);
    play.forget();
    play.server(&status("t", "working"));
    assert_eq!(play.heard(7), [status("t", "working")]);
    play.asks(7, &about("1", "tasks/get", "t"));
}

#[test]
fn a_task_begun_by_what_was_cancelled_is_its_owners_still() {
    let mut play = Play::legacy(2);
    let minted = play.asks(1, &call("1", "a"));
    play.client(1, &cancel("1"));
    play.server(&result(
        &minted,
        r#"{"task":{"taskId":"t","status":"working"}}"#,
    ));
    play.forget();
    play.client(2, &about("1", "tasks/get", "t"));
    assert_eq!(refusal(&play.heard(2)[0]).1, -32602);
    play.server(&ask_about("0", "t"));
    play.is_asked(1);
}

#[test]
fn a_task_of_the_modern_era_is_the_session_s_that_began_it() {
    for (kind, nested) in [(r#""resultType":"task","#, false), ("", false), ("", true)] {
        let mut play = Play::modern(2);
        let minted = play.asks(1, &modern("1", "tools/call", ""));
        let task = format!(r#"{{{kind}"taskId":"t","status":"working"}}"#);
        let answer = match nested {
            true => format!(r#"{{"task":{task}}}"#),
            false => task,
        };
        play.server(&result(&minted, &answer));
        assert_eq!(play.heard(1), [result("1", &answer)]);
        for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
            play.client(2, &modern("2", method, r#","taskId":"t""#));
            assert_eq!(refusal(&play.heard(2)[0]), ("2".into(), -32602));
            play.nobody_hears();
            let minted = play.asks(1, &modern("2", method, r#","taskId":"t""#));
            play.server(&result(&minted, "{}"));
            assert_eq!(play.heard(1), [result("2", "{}")]);
        }
    }
}

#[test]
fn how_a_task_of_the_modern_era_goes_is_told_to_its_owner_alone() {
    let mut play = Play::modern(2);
    let minted = play.asks(1, &modern("1", "tools/call", ""));
    play.server(&result(&minted, r#"{"resultType":"task","taskId":"t"}"#));
    play.forget();
    let listen = r#","notifications":{"taskIds":["t"]}"#;
    let own = play.asks(1, &modern("8", "subscriptions/listen", listen));
    let foreign = play.asks(2, &modern("9", "subscriptions/listen", listen));
    for method in ["notifications/tasks/status", "notifications/tasks"] {
        let line = notice(method, r#"{"taskId":"t","inputRequests":{"k":"secret"}}"#);
        play.server(&line);
        assert_eq!(play.heard(1), [&line[..]]);
        play.nobody_hears();
        let subscribed = |id: &str| {
            let name = "io.modelcontextprotocol/subscriptionId";
            notice(
                method,
                &format!(r#"{{"_meta":{{"{name}":{id}}},"taskId":"t"}}"#),
            )
        };
        play.server(&subscribed(&own));
        assert_eq!(play.heard(1), [subscribed("8")]);
        play.server(&subscribed(&foreign));
        play.nobody_hears();
        play.server(&notice(method, r#"{"taskId":"who?"}"#));
        play.nobody_hears();
        play.forget();
    }
}

#[test]
fn a_session_with_very_many_tasks_learns_nothing_of_anothers() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for nth in 0..4097 {
        begin(&mut play, 2, &format!("own-{nth}"));
    }
    play.notes();
    play.client(2, &about("1", "tasks/cancel", "t"));
    assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    play.client(1, &about("1", "tasks/get", "own-0"));
    assert_eq!(refusal(&play.heard(1)[0]), ("1".into(), -32602));
    play.nobody_hears();
    play.asks(1, &about("2", "tasks/get", "t"));
    // What was forgotten is nobody's.
    play.client(2, &about("2", "tasks/get", "own-0"));
    assert_eq!(refusal(&play.heard(2)[0]), ("2".into(), -32602));
}

#[test]
fn a_task_id_is_a_string_whatever_is_asked_about_it() {
    let mut play = Play::legacy(2);
    begin(&mut play, 1, "t");
    for params in [r#"{"taskId":["t"]}"#, r#"{"taskId":1}"#] {
        play.client(2, &request("1", "tasks/cancel", params));
        assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    }
    play.client(2, &about("1", "tasks/delete", "t"));
    assert_eq!(refusal(&play.heard(2)[0]), ("1".into(), -32602));
    play.nobody_hears();
}

#[test]
fn only_who_works_on_a_task_for_the_server_tells_how_it_goes() {
    let mut play = Play::legacy(2);
    play.asks(1, &call("1", "a"));
    play.server(&request("0", "sampling/createMessage", "{}"));
    let asked = play.is_asked(1);
    play.client(1, &result(&asked, r#"{"task":{"taskId":"w"}}"#));
    play.forget();
    play.client(2, &status("w", "failed"));
    play.nobody_hears();
    assert_eq!(play.notes(), [Note::ForeignTask(ClientId(2))]);
    play.client(1, &status("w", "working"));
    assert_eq!(play.server_heard(), [status("w", "working")]);
}
