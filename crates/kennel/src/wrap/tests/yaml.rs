//! YAML that is refused, or read though it looks odd.

use super::*;

#[test]
fn yaml_that_is_not_understood_is_refused_with_its_line() {
    for (text, line) in [
        ("extensions: {a: {cmd: x}}\n", 1),
        ("extensions:\n  a: {cmd: x}\n", 2),
        ("extensions:\n  a:\n    cmd: *x\n", 3),
        ("extensions:\n  a:\n    cmd: |\n      x\n", 4),
        (
            "extensions:\n  a:\n    cmd: x\n    args: [a,\n      b]\n",
            4,
        ),
        ("extensions:\n  a:\n    <<: *base\n    cmd: x\n", 3),
        ("extensions:\n  a:\n    cmd: x\n    envs: {A: b}\n", 4),
        (
            "extensions:\n  a:\n    cmd: x\n    args:\n      - &x y\n",
            5,
        ),
        ("extensions:\n  a:\n    cmd: x\n    args: y\n", 4),
        ("extensions:\n\ta:\n", 2),
        ("extensions:\n  a:\n    cmd: \"x\n", 3),
        ("extensions:\n  a:\n    cmd: x\nextensions:\n", 4),
        ("a: 1\n---\nb: 2\n", 2),
        ("extensions:\n  a:\n    cmd: x\n   b: 1\n", 4),
        ("extensions:\n  a:\n    cmd: x\n    \"cmd\": y\n", 4),
        (
            "extensions:\n  a:\n    cmd: x\n    timeout: 1\n    timeout: 2\n",
            5,
        ),
        ("extensions:\n  a:\n    cmd: x\n  'a':\n    cmd: y\n", 4),
        (
            "extensions:\n  a:\n    cmd: x\n    envs:\n      A: 1\n      A: 2\n",
            6,
        ),
        (
            "extensions:\n  a:\n    cmd: x\n    args:\n      - y\n        z\n",
            6,
        ),
        ("{extensions: {a: {cmd: x}}}\n", 1),
        ("\u{feff}{\n  \"extensions\": {}}\n", 1),
        ("a: 1\n--- {extensions: {a: {cmd: x}}}\n", 2),
    ] {
        let error = Shape::Yaml(Kind::Extensions).entries(text).expect_err(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}

/// A line of such a text can look like a key of the file.
#[test]
fn yaml_with_a_quoted_text_over_several_lines_is_refused_with_its_line() {
    for (text, line) in [
        ("note: \"\nextensions:\n  a:\n    cmd: x\n\"\n", 1),
        (
            "extensions:\n  a:\n    cmd: x\n    about: \"b\n    args: [c]\n    d\"\n",
            4,
        ),
        (
            "extensions:\n  a:\n    about: 'it''s\n    cmd: y\n    z'\n    cmd: x\n",
            3,
        ),
        (
            "extensions:\n  a:\n    about: !!str &b \"c\n    cmd: y\"\n    cmd: x\n",
            3,
        ),
        (
            "extensions:\n  a:\n    about:\n      \"b\n    cmd: y\"\n    cmd: x\n",
            4,
        ),
        (
            "extensions:\n  a:\n    cmd: x\n    args:\n      - \"b\n      - c\"\n",
            5,
        ),
        ("a:\n  - - \"b\nextensions:\n\"\n", 2),
        ("a:\n  - b: 'c\nextensions:\n'\n", 2),
        ("\"a\nextensions: b\": c\n", 2),
        ("? \"a\nextensions: b\"\n: c\n", 1),
        ("a: [b, \"c\nextensions:\n\"]\n", 1),
        ("a: {b: 'c',\n  \"d\":\"e\nextensions:\n\"}\n", 2),
        ("a: [b,\nextensions:\n]\n", 2),
        ("a: |\n  \"b\nc: \"d\nextensions:\n\"\n", 3),
        ("a: [!b]\nc: \"d\nextensions:\n\"\n", 2),
    ] {
        let error = Shape::Yaml(Kind::Extensions).entries(text).expect_err(text);
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}

#[test]
fn yaml_with_a_quote_that_opens_no_quoted_text_is_read() {
    for other in [
        "about: it's 5\" wide",
        "about: b # it's",
        "about: \"b\" # it's",
        "about: |\n      it's\n      \"b\n       'c",
        "about: >2- # it's\n      \"b",
        "about:\n    - |\n     \"b\n    - b: >\n       'c",
        "about: [\"b\", 'it''s', c\"d] # '",
        "about: {\"b\":\"c\", d: 'e',\n      f: it's,\n      \"g\": [h]}",
        "'about': \"b\\\"c\"",
    ] {
        let text = format!("extensions:\n  a:\n    {other}\n    cmd: x\n    args: [y]\n");
        let shape = Shape::Yaml(Kind::Extensions);
        let entries = shape.entries(&text).expect(&text);
        assert_eq!(entries[0].command().expect(&text), ["x", "y"]);
        let wrapped = wrapped(&text, shape);
        assert_eq!(unwrapped(&wrapped, shape, &text), text, "{wrapped}");
    }
}

#[test]
fn yaml_with_a_byte_order_mark_or_a_quoted_key_is_known_by_its_first_line() {
    for text in [
        "\u{feff}extensions:\n",
        "'extensions' :\n",
        "a: 1\n\"extensions\":\n",
    ] {
        let shape = Shape::of_file(Path::new("config.yaml"), text);
        assert_eq!(shape, Some(Shape::Yaml(Kind::Extensions)), "{text:?}");
    }
    for text in [
        "mcpServers:\n",
        "extensions_of: 1\n",
        "a:\n  extensions: 1\n",
    ] {
        let shape = Shape::of_file(Path::new("config.yaml"), text);
        assert_eq!(shape, Some(Shape::Yaml(Kind::McpServers)), "{text:?}");
    }
}

#[test]
fn a_yaml_server_in_braces_is_refused_with_its_line() {
    let text = "mcpServers:\n  - {name: a, command: npx}\n";
    let error = Shape::Yaml(Kind::McpServers).entries(text).expect_err(text);
    assert_eq!(error.line, 2, "{error}");
}

/// Found by `cargo xtask fuzz`.
#[test]
fn yaml_with_a_letter_of_several_bytes_behind_a_quoted_key_is_refused_where_it_is() {
    for kind in [Kind::Extensions, Kind::McpServers] {
        for (text, column) in [
            ("\"\"\u{d34d}", 3),
            ("'a'\u{e9}: b\n", 4),
            ("\"a\"\u{1f415}", 4),
        ] {
            let error = Shape::Yaml(kind).entries(text).expect_err(text);
            assert_eq!((error.line, error.column), (1, column), "{text:?}");
        }
    }
}
