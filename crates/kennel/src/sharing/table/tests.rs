use super::super::launcher;
use super::*;

fn found(command: &str) -> Option<&'static Row> {
    let words: Vec<&str> = command.split(' ').collect();
    row_of(&launcher::launched(&words)?)
}

#[track_caller]
fn assert_found(command: &str, row: &Row) {
    let found = found(command);
    assert!(
        found.is_some_and(|found| std::ptr::eq(found, row)),
        "{command}: {found:?}"
    );
}

/// The commands that start a row's server, and similar commands that do not.
fn spellings(row: &Row) -> (Vec<String>, Vec<String>) {
    let (mut same, mut others) = (Vec::new(), Vec::new());
    match row.package {
        Some((Registry::Npm, name)) => {
            let launchers = [
                "npx",
                "npx -y",
                "npm exec --yes --",
                "npm x",
                "pnpm dlx",
                "yarn dlx",
                "bunx",
                "bun x",
                "env A=B npx",
                "/usr/local/bin/npx -q",
            ];
            for launcher in launchers {
                same.extend(
                    ["", "@latest", "@1.2.3"].map(|v| format!("{launcher} {name}{v} --flag")),
                );
                others.push(format!("{launcher} {name}-pro"));
                others.push(format!("{launcher} my-{name}"));
                others.push(format!("{launcher} {name}@npm:other"));
                others.push(format!("{launcher} @someone-else/{}", launcher::base(name)));
            }
            same.push(format!("deno run -A npm:{name}@1"));
            same.push(format!("node /opt/app/node_modules/{name}/dist/index.js"));
            same.push(format!("/opt/app/node_modules/{name}/cli.js"));
            for program in row.programs {
                same.push(format!("npx -y -p {name}@1 {program}"));
                others.push(format!("npx -p other {program}"));
                others.push(format!("npx -p {name} -p other {program}"));
                others.push(format!(
                    "npx --registry https://example.com -p {name} {program}"
                ));
            }
            others.push(format!("npx -p {name} sh"));
            others.push(format!("npx --registry https://example.com {name}"));
            others.push(format!(
                "node /opt/app/node_modules/{name}-pro/dist/index.js"
            ));
            others.push(format!(
                "node /opt/app/node_modules/{name}/node_modules/z/index.js"
            ));
            others.push(format!("uvx {}", launcher::base(name)));
            others.push(format!("docker run {name}"));
        }
        Some((Registry::PyPi, name)) => {
            let odd = name.replace('-', "_").to_uppercase();
            for launcher in ["uvx", "uvx -q", "uv tool run", "pipx run", "env A=B uvx"] {
                let versions = ["", "@latest", "==1.2.3", "[all]>=1"];
                same.extend(versions.map(|v| format!("{launcher} {name}{v} --flag")));
                same.push(format!("{launcher} {odd}"));
                others.push(format!("{launcher} {name}-pro"));
                others.push(format!("{launcher} my-{name}"));
                others.push(format!("{launcher} git+https://example.com/{name}"));
            }
            for program in row.programs {
                same.push(format!("uvx --from {name}==1 {program}"));
                same.push(format!("pipx run --spec {name} {program}"));
                same.push(format!("uv run --directory /a {program}"));
                others.push(format!("uvx --from other {program}"));
            }
            others.push(format!("uvx --from {name} sh"));
            others.push(format!("npx {name}"));
        }
        Some((Registry::Elsewhere, _)) => unreachable!("nobody can say what is there"),
        None => assert!(!row.programs.is_empty()),
    }
    for program in row.programs {
        same.push(format!("{program} --flag"));
        same.push(format!("/opt/app/node_modules/.bin/{program}"));
        same.push(format!("uv run {program}"));
        same.push(format!("/home/a/project/.venv/bin/{program}"));
        same.push(format!("venv/bin/{program}"));
        same.push(format!("/usr/local/bin/{program}"));
        // Any program may have this name: it is matched only by rows of dedicated servers.
        let anywhere = [
            format!("/somewhere/else/{program}"),
            format!("./{program}"),
            format!("/opt/bin/{program}"),
            format!("/tmp/my-venv/bin/{program}"),
            format!("/a/node_modules/.bin/../../{program}"),
            format!("/a/venv/bin/../../venv/bin/{program}"),
            format!("uv run /somewhere/else/{program}"),
        ];
        match row.rule {
            Rule::Never => same.extend(anywhere),
            Rule::Always | Rule::InTurn | Rule::Modern => others.extend(anywhere),
        }
        others.push(format!("{program}-pro"));
        others.push(format!("echo {program}"));
        others.push(format!("node /opt/{program}"));
    }
    if let Some(module) = row.module {
        same.push(format!("python -m {module} --flag"));
        same.push(format!("/opt/venv/bin/python3.13 -u -m {module}"));
        same.push(format!("uv run -m {module}"));
        others.push(format!("python -m {module}_pro"));
        others.push(format!("python -m my.{module}"));
        others.push(format!("python {module}"));
    }
    (same, others)
}

#[test]
fn every_row_is_recognised_in_every_spelling() {
    for row in ROWS {
        for command in spellings(row).0 {
            assert_found(&command, row);
        }
    }
}

#[test]
fn no_row_is_taken_for_its_neighbours() {
    for row in ROWS {
        for command in spellings(row).1 {
            let found = found(&command);
            let wrong = found.is_some_and(|found| std::ptr::eq(found, row));
            assert!(!wrong, "{command}: {row:?}");
        }
    }
}

#[test]
fn no_name_stands_in_two_rows_and_all_are_in_order() {
    let mut names = Vec::new();
    for row in ROWS {
        if let Some((registry, name)) = row.package {
            names.push(format!("{registry:?} {name}"));
            if registry == Registry::PyPi {
                assert_eq!(normalised(name), name);
            }
        }
        names.extend(row.programs.iter().map(|name| format!("program {name}")));
        names.extend(row.module.map(|name| format!("module {name}")));
    }
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len());

    let place = |row: &Row| match row.package {
        Some((registry, name)) => (registry == Registry::PyPi, name),
        None => (true, "~"),
    };
    assert!(ROWS.is_sorted_by_key(place));
}

#[test]
fn every_row_has_its_evidence_and_a_few_words_for_ps() {
    assert!(ROWS.len() >= 25);
    for row in ROWS {
        assert!(
            !row.seen.is_empty() && row.evidence.ends_with('.'),
            "{row:?}"
        );
        assert!(row.why.len() <= 72 && !row.why.ends_with('.'), "{row:?}");
        assert!(
            !row.evidence.contains(['|', '\n']) && !row.evidence.contains("  "),
            "{row:?}"
        );
    }
}

#[test]
fn every_row_that_shares_names_the_variables_it_reads() {
    for row in ROWS {
        assert_eq!(row.reads.is_some(), row.rule != Rule::Never, "{row:?}");
        assert_eq!(row.variables().is_some(), row.reads.is_some());
    }
}

#[test]
fn server_memory_is_safe_and_the_servers_with_a_browser_are_not() {
    let rule = |command| found(command).map(|row| row.rule);
    let memory = "npx -y @modelcontextprotocol/server-memory";
    assert_eq!(rule(memory), Some(Rule::InTurn));
    for command in [
        "npx @playwright/mcp@latest",
        "npx chrome-devtools-mcp@latest",
    ] {
        assert_eq!(rule(command), Some(Rule::Never));
    }
}

/// The table as the documentation shows it.
fn as_document() -> String {
    let mut text = String::from(
        "| server | who shares | why | variables it reads | what was read |\n|---|---|---|---|---|\n",
    );
    for row in ROWS {
        let name = match row.package {
            Some((Registry::PyPi, name)) => format!("`{name}` (Python)"),
            Some((_, name)) => format!("`{name}`"),
            None => format!("`{}` (program)", row.programs[0]),
        };
        let who = match row.rule {
            Rule::Always => "all",
            Rule::InTurn => "all, in turn",
            Rule::Modern => "modern only",
            Rule::Never => "none",
        };
        let Row {
            why,
            seen,
            evidence,
            ..
        } = row;
        let names = row.reads.unwrap_or_default().iter();
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        text += &format!("| {name} | {who} | {why} | {names} | {seen}: {evidence} |\n");
    }
    text
}

#[test]
fn the_documentation_shows_this_very_table() {
    let document = include_str!("../../../../../docs/SHARING.md");
    let (_, rest) = document.split_once("<!-- table: begin -->\n").unwrap();
    let (shown, _) = rest.split_once("<!-- table: end -->").unwrap();
    assert!(
        shown == as_document(),
        "put this into docs/SHARING.md:\n{}",
        as_document()
    );
}
