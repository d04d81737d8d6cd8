//! Random lines, spelled in as many ways as JSON allows.

use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::{collection, prop_oneof};

/// A well-formed line of one message.
pub(crate) fn message() -> impl Strategy<Value = String> {
    let request =
        (id(), name(), collection::vec(structured(), 0..2)).prop_map(|(id, method, params)| {
            let mut fields = vec![("id", id), ("method", method)];
            fields.extend(params.into_iter().map(|params| ("params", params)));
            fields
        });
    let notification = name().prop_map(|method| vec![("method", method)]);
    let result = (id(), value()).prop_map(|(id, result)| vec![("id", id), ("result", result)]);
    let error = (id(), object()).prop_map(|(id, error)| vec![("id", id), ("error", error)]);
    let fields = prop_oneof![4 => request, 1 => notification, 2 => result, 1 => error];
    let extra = collection::vec((select(&["x", "_meta", "Id", "x", "é"][..]), value()), 0..3);
    (
        fields,
        extra,
        collection::vec(any::<u32>(), 8),
        space(),
        space(),
    )
        .prop_map(|(mut fields, extra, order, before, between)| {
            fields.push(("jsonrpc", r#""2.0""#.to_owned()));
            fields.extend(extra);
            let mut fields: Vec<_> = fields.into_iter().zip(order).collect();
            fields.sort_by_key(|(_, order)| *order);
            let fields: Vec<_> = fields
                .iter()
                .map(|((key, value), _)| format!("{before}\"{key}\"{between}:{before}{value}"))
                .collect();
            let fields = fields.join(&format!("{between},"));
            format!("{before}{{{fields}{between}}}{before}")
        })
}

/// An id in any spelling, acceptable or not.
pub(crate) fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        (-5_i64..1 << 54).prop_map(|number| number.to_string()),
        name(),
        select(&["null", "1.5", "-0", "1e3", "9007199254740993"][..]).prop_map(str::to_owned),
    ]
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        name(),
        select(
            &[
                "null", "true", "false", "0", "-0", "1.0", "1e2", "1E+2", "0.10", "-12.5e-3"
            ][..]
        )
        .prop_map(str::to_owned),
        select(&["12345678901234567890123", "9007199254740993"][..]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![array_of(inner.clone()), object_of(inner)]
    })
}

fn structured() -> impl Strategy<Value = String> {
    prop_oneof![array_of(value()), object(), Just("null".to_owned())]
}

fn object() -> impl Strategy<Value = String> {
    object_of(value())
}

fn array_of(values: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (collection::vec(values, 0..4), space()).prop_map(|(values, space)| {
        format!("[{space}{}{space}]", values.join(&format!("{space},")))
    })
}

fn object_of(values: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (collection::vec((name(), values), 0..4), space()).prop_map(|(fields, space)| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(key, value)| format!("{space}{key}{space}:{value}"))
            .collect();
        format!("{{{}{space}}}", fields.join(","))
    })
}

/// A string in any spelling.
fn name() -> impl Strategy<Value = String> {
    let pieces = &[
        "a",
        "id",
        "method",
        "/",
        "\\/",
        "\\u0061",
        "\\u00E9",
        "é",
        "\\n",
        "\\\"",
        "\\\\",
        "{",
        "}",
        ",",
        ":",
        "😀",
        "\\ud83d\\ude00",
        "\\u0000",
        "1",
        "\u{2028}",
    ][..];
    collection::vec(select(pieces), 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn space() -> impl Strategy<Value = String> {
    select(&["", "", "", " ", "\t", "\r", "  "][..]).prop_map(str::to_owned)
}
