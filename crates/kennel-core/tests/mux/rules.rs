//! What holds for every order of events.

use kennel_core::message::Message;
use kennel_core::mux::{Class, ClientId, MuxPolicy, Output};
use kennel_core::time::Moment;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use proptest::{collection, prop_assert, prop_oneof};

use crate::chance::holds;
use crate::lines::message;
use crate::play::{class_of, initialize_with};
use crate::twins::Twins;
use crate::world::{Step, What, World};

const METHODS: &[&str] = &[
    "initialize",
    "notifications/initialized",
    "tools/list",
    "server/discover",
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
    "tasks/get",
    "tasks/list",
    "roots/list",
    "sampling/createMessage",
    "tools/call",
    "subscriptions/listen",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/resources/updated",
    "notifications/roots/list_changed",
    "notifications/tasks/status",
    "notifications/tools/list_changed",
];
const PARAMS: &[&str] = &[
    "{}",
    "[]",
    "null",
    r#"{"uri":"a"}"#,
    r#"{"uri":1}"#,
    r#"{"level":"debug"}"#,
    r#"{"level":"error"}"#,
    r#"{"requestId":1}"#,
    r#"{"requestId":"2"}"#,
    r#"{"requestId":{}}"#,
    r#"{"progressToken":2}"#,
    r#"{"taskId":"t"}"#,
    r#"{"_meta":{"progressToken":1}}"#,
    r#"{"_meta":[1],"_meta":{"progressToken":1}}"#,
    r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#,
    r#"{"_meta":{"io.modelcontextprotocol/subscriptionId":3}}"#,
    r#"{"protocolVersion":"2025-03-26","capabilities":{"roots":{}}}"#,
];
const RESULTS: &[&str] = &[
    "{}",
    "7",
    r#"{"tools":[],"nextCursor":"x"}"#,
    r#"{"task":{"taskId":"t","status":"working"}}"#,
    r#"{"tasks":[{"taskId":"t"},3]}"#,
    r#"{"roots":[]}"#,
    r#"{"roots":[1]}"#,
    r#"{"ttlMs":5,"cacheScope":"public"}"#,
];

#[test]
fn rules_4_and_11_hold_for_every_order_of_events() {
    let what = prop_oneof![
        5 => any::<u8>().prop_map(|n| What::Join { odd_roots: n < 20 }),
        1 => Just(What::Return),
        2 => Just(What::Leave),
        16 => Just(What::Call),
        4 => Just(What::List),
        4 => Just(What::Subscribe),
        3 => Just(What::Unsubscribe),
        6 => Just(What::Cancel),
        1 => Just(What::Nonsense),
        3 => Just(What::AnswerServer),
        24 => Just(What::Read),
        16 => any::<u8>().prop_map(|n| What::Answer { kindly: n > 60 }),
        1 => Just(What::AnswerTwice),
        6 => Just(What::Progress),
        2 => Just(What::Updated),
        2 => Just(What::Changed),
        1 => any::<bool>().prop_map(|about_nothing| What::Ask { about_nothing }),
        1 => Just(What::AskRoots),
        1 => Just(What::EndTask),
    ];
    holds("mux", steps(what), play);
}

#[test]
fn nobody_is_asked_what_is_another_clients() {
    let what = prop_oneof![
        6 => any::<u8>().prop_map(|n| What::Join { odd_roots: n < 60 }),
        2 => Just(What::Return),
        3 => Just(What::Leave),
        10 => Just(What::Call),
        1 => Just(What::List),
        4 => Just(What::Cancel),
        8 => Just(What::AnswerServer),
        16 => Just(What::Read),
        12 => Just(What::Answer { kindly: true }),
        10 => any::<u8>().prop_map(|n| What::Ask { about_nothing: n < 40 }),
        4 => Just(What::AskRoots),
        2 => Just(What::CancelAsk),
        3 => Just(What::EndTask),
    ];
    holds("asks", steps(what), play);
}

#[test]
fn whatever_is_said_only_messages_pass_and_nothing_panics() {
    let known = (0..8_u8, select(METHODS), select(PARAMS)).prop_map(|(id, method, params)| {
        match method.starts_with("notifications") {
            true => format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#),
            false => {
                format!(r#"{{"id":{id},"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
            }
        }
    });
    let answer = (0..12_u8, select(RESULTS))
        .prop_map(|(id, result)| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
    let one = prop_oneof![3 => known, 2 => answer, 1 => message()].boxed();
    let line = prop_oneof![
        5 => one.clone(),
        1 => collection::vec(one, 1..4).prop_map(|lines| format!("[{}]", lines.join(","))),
    ];
    let steps = collection::vec((0..12_u8, line), 0..60);
    holds(
        "only messages",
        (0..3_u8, any::<bool>(), steps),
        |(class, in_turn, steps)| {
            let class = match class {
                0 => class_of(&initialize_with("0", "2025-03-26", r#"{"roots":{}}"#)),
                1 => Class::modern(),
                _ => Class::private(),
            };
            let policy = MuxPolicy {
                in_turn,
                ..MuxPolicy::default()
            };
            let mut mux = Twins::new(class, policy);
            for (what, line) in steps {
                let client = ClientId(u64::from(what % 3));
                match what {
                    0 => mux.leave(client, Moment::START),
                    1..4 => mux.join(client, &what.to_string()),
                    4..9 => mux.handle_client_line(client, line.as_bytes(), Moment::START),
                    _ => mux.handle_server_line(line.as_bytes(), Moment::START),
                }
                while let Some(out) = mux.poll_output() {
                    match out {
                        Output::ToServer { line, .. }
                        | Output::ToClient { line, .. }
                        | Output::ToClients { line, .. } => {
                            prop_assert!(Message::parse(&line).is_ok());
                        }
                        Output::Dismiss { .. } => {}
                    }
                }
            }
            for client in 0..3 {
                mux.leave(ClientId(client), Moment::START);
                prop_assert!(mux.pending_requests_of(ClientId(client)) == 0);
            }
            Ok(())
        },
    );
}

fn steps(what: impl Strategy<Value = What>) -> impl Strategy<Value = Vec<Step>> {
    let step = (what, 0..12_usize, 0..12_usize);
    collection::vec(
        step.prop_map(|(what, one, other)| Step(what, one, other)),
        0..150,
    )
}

fn play(steps: Vec<Step>) -> TestCaseResult {
    let mut world = World::new();
    for step in steps {
        world.play(step)?;
    }
    world.finish()
}
