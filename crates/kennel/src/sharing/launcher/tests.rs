use super::*;

fn of(command: &str) -> Option<Launched> {
    let words: Vec<&str> = command.split(' ').collect();
    launched(&words)
}

fn package(registry: Registry, name: &str) -> Option<Launched> {
    Some(Launched::Package {
        registry,
        names: vec![name.to_owned()],
        program: None,
    })
}

fn npm(name: &str) -> Option<Launched> {
    package(Registry::Npm, name)
}

fn pypi(name: &str) -> Option<Launched> {
    package(Registry::PyPi, name)
}

fn elsewhere(name: &str) -> Option<Launched> {
    package(Registry::Elsewhere, name)
}

#[test]
fn a_package_of_npm_is_found_behind_every_launcher_of_npm() {
    for command in [
        "npx @x/y",
        "npx -y @x/y@latest --option",
        "npx --yes -- @x/y@^1.2.3 -y other",
        "npx --loglevel error -y @x/y",
        "/usr/bin/npx -q @x/y@next",
        "npm exec @x/y",
        "npm exec --yes -- @x/y@1 a b",
        "npm x -y @x/y",
        "pnpm dlx @x/y@1.0.0",
        "pnpx @x/y",
        "yarn dlx -q @x/y",
        "bunx --bun @x/y",
        "bun x @x/y@2",
        "deno run -A npm:@x/y@1",
        "node /opt/node_modules/@x/y/dist/index.js a",
        "node --no-warnings --max-old-space-size=512 node_modules/@x/y/index.js",
        "bun run /opt/node_modules/@x/y/index.js",
        "/opt/node_modules/@x/y/dist/index.js",
        "node /a/node_modules/z/node_modules/@x/y/index.js",
    ] {
        assert_eq!(of(command), npm("@x/y"), "{command}");
    }
    assert_eq!(of("npx plain@1.2.3"), npm("plain"));
    assert_eq!(of("node /opt/node_modules/plain/index.js"), npm("plain"));
}

#[test]
fn a_package_of_python_is_found_behind_every_launcher_of_python() {
    for command in [
        "uvx x-y",
        "uvx x-y@latest --option",
        "uvx -q --python 3.12 x-y==1.2",
        "uvx x-y>=1.0",
        "uvx x-y[extra]==1.0",
        "uvx --with other x-y",
        "uv tool run x-y@1",
        "pipx run x-y==1.0 a",
    ] {
        assert_eq!(of(command), pypi("x-y"), "{command}");
    }
    for command in [
        "python -m x_y",
        "python3.12 -u -m x_y -c ignored",
        "/opt/venv/bin/python3 -m x_y",
        "uv run -m x_y",
        "uv run --directory /a python -m x_y",
        "uv --directory /a run python3 -m x_y",
    ] {
        assert_eq!(
            of(command),
            Some(Launched::Module("x_y".into())),
            "{command}"
        );
    }
}

#[test]
fn a_package_may_have_another_name_than_its_program() {
    let found = |registry, names: &[&str], program: &str| {
        Some(Launched::Package {
            registry,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            program: Some(program.to_owned()),
        })
    };
    let npm = |names: &[&str], program| found(Registry::Npm, names, program);
    assert_eq!(of("npx -y -p @x/y@1 z a"), npm(&["@x/y"], "z"));
    assert_eq!(
        of("npx --package=@x/y --package w -- z"),
        npm(&["@x/y", "w"], "z")
    );
    assert_eq!(of("npm exec --package=@x/y -- z"), npm(&["@x/y"], "z"));
    assert_eq!(of("bunx -p @x/y z"), npm(&["@x/y"], "z"));
    assert_eq!(
        of("uvx --from x-y==1 z"),
        found(Registry::PyPi, &["x-y"], "z")
    );
    assert_eq!(
        of("pipx run --spec x-y z"),
        found(Registry::PyPi, &["x-y"], "z")
    );
    let git = "uvx --from git+https://example.com/a/x-y.git@main z";
    assert_eq!(of(git), found(Registry::Elsewhere, &["x-y"], "z"));
}

#[test]
fn a_package_outside_the_registry_is_elsewhere() {
    for command in [
        "npx y@npm:other@1",
        "npx y@file:../y",
        "npx y@https://example.com/y.tgz",
        "npx github:a/y",
        "npx a/y",
        "npx ./y",
        "npx --registry https://example.com y",
        "npx --registry=https://example.com y@1",
        "uvx --index-url https://example.com y",
        "uvx y@https://example.com/y.whl",
        "uvx git+https://example.com/a/y",
        "uvx ./y",
        "pipx run --pip-args=-i\u{a0}x y",
    ] {
        assert_eq!(of(command), elsewhere("y"), "{command}");
    }
}

#[test]
fn programs_and_scripts_keep_their_paths() {
    let program = |path: &str| Some(Launched::Program(path.into()));
    let script = |path: &str| Some(Launched::Script(path.into()));
    assert_eq!(of("/opt/bin/notes serve"), program("/opt/bin/notes"));
    assert_eq!(of("uv run --directory /a notes"), program("notes"));
    assert_eq!(
        of("a/node_modules/.bin/notes"),
        program("a/node_modules/.bin/notes")
    );
    assert_eq!(of("node /opt/x/server.js"), script("/opt/x/server.js"));
    assert_eq!(
        of("node a/node_modules/../server.js"),
        script("a/node_modules/../server.js")
    );
    assert_eq!(of("python3 server.py -m x"), script("server.py"));
    assert_eq!(of("uv run server.py"), script("server.py"));
}

#[test]
fn plain_wrappers_are_followed() {
    for command in [
        &["env", "A=B", "C=", "npx", "-y", "@x/y"][..],
        &["env", "-i", "-u", "A", "PATH=/bin", "npx", "@x/y"],
        &["sh", "-c", "npx -y @x/y@1"],
        &["bash", "-lc", "exec npx @x/y"],
        &["/bin/sh", "-e", "-c", "TOKEN=a1 npx  @x/y --port=1"],
        &["env", "A=B", "sh", "-c", "env C=D npx @x/y"],
    ] {
        assert_eq!(launched(command), npm("@x/y"), "{command:?}");
    }
    for command in [
        &["sh", "-c", "cd /a && npx @x/y"][..],
        &["sh", "-c", "npx @x/y; rm a"],
        &["sh", "-c", "npx @x/y | tee log"],
        &["sh", "-c", "npx $PACKAGE"],
        &["sh", "-c", "npx \"@x/y\""],
        &["sh", "-c", "npx @x/y\nnpx z"],
        &["sh", "-c", "npx @x/{y,z}"],
        &["sh", "-c", "npx @x/y", "argument"],
        &["sh", "-x", "-c", "npx @x/y"],
        &["sh", "npx @x/y"],
        &["sh"],
        &["env", "-S", "npx @x/y"],
        &["env", "A=B"],
        &["env", "env", "env", "env", "env", "npx", "@x/y"],
    ] {
        assert_eq!(launched(command), None, "{command:?}");
    }
}

#[test]
fn an_ambiguous_command_line_is_not_guessed() {
    for command in [
        "npx",
        "npx -y",
        "npx -p",
        "npx --new-option @x/y",
        "npx -c @x/y",
        "npx -p @x/y",
        "npm run @x/y",
        "npm install @x/y",
        "pnpm @x/y",
        "yarn @x/y",
        "deno run https://example.com/x.ts",
        "node",
        "node --import ./hook.js /opt/node_modules/@x/y/index.js",
        "node --import=./hook.js /opt/node_modules/@x/y/index.js",
        "node -r ./hook.js /opt/node_modules/@x/y/index.js",
        "node -e code /opt/node_modules/@x/y/index.js",
        "python -c code -m x",
        "python -W ignore -m x",
        "python",
        "python -m",
        "uv sync",
        "uv run",
        "pipx install x",
        "docker run -i x/y",
        "podman run npx @x/y",
    ] {
        assert_eq!(of(command), None, "{command}");
    }
    assert_eq!(launched::<&str>(&[]), None);
}

#[test]
fn a_server_has_the_name_of_the_launched_package() {
    for (command, name) in [
        (
            "npx -y @modelcontextprotocol/server-everything",
            "server-everything",
        ),
        ("npx --loglevel error some-server@2", "some-server"),
        ("npx -p @x/y@1 z", "z"),
        ("uvx mcp-server-git@1.2", "mcp-server-git"),
        ("uvx --from git+https://example.com/x.git serena", "serena"),
        ("/usr/bin/python3 -m notes --db x", "notes"),
        ("node /opt/x/server.js", "server.js"),
        ("node /opt/node_modules/@x/y/dist/index.js", "y"),
        ("uv run server.py", "server.py"),
        ("uv --directory /a run notes", "notes"),
        ("/opt/bin/notes serve", "notes"),
        ("docker run -i x/y", "docker"),
        ("npx --new-option y", "npx"),
        ("node", "node"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(name_of(&words), name);
    }
    assert_eq!(name_of::<&str>(&[]), "server");
}
