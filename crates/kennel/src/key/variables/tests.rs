use super::super::rights::*;
use super::*;

type Env = Vec<(OsString, OsString)>;

fn env(pairs: &[(&str, &str)]) -> Env {
    let pair = |(name, value): &(&str, &str)| (name.into(), value.into());
    pairs.iter().map(pair).collect()
}

const PATH: &str = "/home/ada/.cargo/bin:/home/ada/.local/bin:/usr/local/bin:/usr/bin:/bin";

/// The variables that the SDKs' clients pass on.
const OF_SDK: &[(&str, &str)] = &[
    ("HOME", "/home/ada"),
    ("LOGNAME", "ada"),
    ("PATH", PATH),
    ("SHELL", "/usr/bin/zsh"),
    ("TERM", "xterm-256color"),
    ("USER", "ada"),
];

/// Variables of a login shell in a terminal.
const OF_SHELL: &[(&str, &str)] = &[
    ("HOME", "/home/ada"),
    ("LOGNAME", "ada"),
    ("USER", "ada"),
    ("PATH", PATH),
    ("SHELL", "/usr/bin/zsh"),
    ("LANG", "en_US.UTF-8"),
    ("LC_TIME", "de_DE.UTF-8"),
    ("EDITOR", "nvim"),
    ("PAGER", "less"),
    ("MAIL", "/var/mail/ada"),
    ("XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
    ("XDG_RUNTIME_DIR", "/run/user/1000"),
    ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"),
    ("SSH_AUTH_SOCK", "/run/user/1000/gcr/ssh"),
];

/// Variables that a desktop gives to the apps it starts.
const OF_DESKTOP: &[(&str, &str)] = &[
    ("HOME", "/home/ada"),
    ("LOGNAME", "ada"),
    ("USER", "ada"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/snap/bin"),
    ("SHELL", "/usr/bin/zsh"),
    ("LANG", "en_US.UTF-8"),
    ("DISPLAY", ":0"),
    ("WAYLAND_DISPLAY", "wayland-0"),
    ("XDG_CURRENT_DESKTOP", "GNOME"),
    ("XDG_CONFIG_DIRS", "/etc/xdg/xdg-ubuntu:/etc/xdg"),
    ("GNOME_SHELL_SESSION_MODE", "ubuntu"),
    ("GTK_MODULES", "gail:atk-bridge"),
    ("QT_ACCESSIBILITY", "1"),
    ("MEMORY_PRESSURE_WATCH", "/sys/fs/cgroup/x/memory.pressure"),
    ("INVOCATION_ID", "8f1c"),
    ("SSH_AUTH_SOCK", "/run/user/1000/keyring/ssh"),
];

/// The environments in which the apps of `docs/CLIENTS.md` start servers.
pub(crate) fn apps() -> Vec<(&'static str, Env)> {
    let of = |base: &[(&str, &str)], own: &[(&str, &str)]| env(&[base, own].concat());
    vec![
        (
            "claude-code",
            of(
                OF_SHELL,
                &[
                    ("CLAUDECODE", "1"),
                    ("CLAUDE_CODE_ENTRYPOINT", "cli"),
                    ("CLAUDE_CODE_SSE_PORT", "41234"),
                    ("CLAUDE_PROJECT_DIR", "/home/ada/one"),
                    ("TMUX", "/tmp/tmux-1000/default,1,0"),
                    ("ATUIN_SESSION", "0191"),
                    ("_P9K_TTY", "/dev/pts/3"),
                    ("FNM_MULTISHELL_PATH", "/run/user/1000/fnm/1"),
                ],
            ),
        ),
        ("claude-desktop", of(OF_SDK, &[])),
        (
            "cursor",
            of(
                OF_DESKTOP,
                &[
                    ("APPDIR", "/tmp/.mount_cursor1"),
                    ("APPIMAGE", "/home/ada/cursor.AppImage"),
                    ("CURSOR_TRACE_ID", "77"),
                    ("WORKSPACE_FOLDER_PATHS", "/home/ada/two"),
                    ("ELECTRON_RUN_AS_NODE", "1"),
                    ("VSCODE_IPC_HOOK", "/run/user/1000/vscode.sock"),
                    ("VSCODE_GIT_IPC_AUTH_TOKEN", "1f"),
                ],
            ),
        ),
        (
            "vscode",
            of(
                OF_DESKTOP,
                &[
                    ("VSCODE_PID", "4711"),
                    ("VSCODE_CWD", "/home/ada"),
                    ("VSCODE_NLS_CONFIG", "{}"),
                    ("CHROME_DESKTOP", "code.desktop"),
                ],
            ),
        ),
        (
            "codex",
            of(
                OF_SDK,
                &[("LANG", "en_US.UTF-8"), ("LC_ALL", "C"), ("TMPDIR", "/tmp")],
            ),
        ),
        (
            "gemini",
            of(
                OF_SHELL,
                &[
                    ("GEMINI_CLI", "1"),
                    ("GEMINI_CLI_IDE_SERVER_PORT", "5005"),
                    ("GEMINI_CLI_IDE_AUTH_TOKEN", "9a"),
                    ("KITTY_PUBLIC_KEY", "1:x"),
                    ("NVIM", "/run/user/1000/nvim.1"),
                ],
            ),
        ),
        (
            "windsurf",
            of(
                OF_DESKTOP,
                &[("WINDSURF_CSRF_TOKEN", "5c"), ("SNAP", "/snap/windsurf/3")],
            ),
        ),
        (
            "opencode",
            of(
                OF_SHELL,
                &[
                    ("OPENCODE", "1"),
                    ("OPENCODE_PID", "4712"),
                    ("OPENCODE_RUN_ID", "r1"),
                    ("AGENT", "1"),
                    ("MCFLY_SESSION_ID", "m"),
                    ("TILIX_ID", "t"),
                    ("TERMINATOR_UUID", "u"),
                ],
            ),
        ),
        (
            "zed",
            of(
                OF_SHELL,
                &[("ZED_TERM", "true"), ("WSL_INTEROP", "/run/WSL/8_interop")],
            ),
        ),
        (
            "cline",
            of(OF_SDK, &[("VSCODE_PID", "4711"), ("LC_CTYPE", "C.UTF-8")]),
        ),
        ("continue", of(OF_SDK, &[("LANG", "C.UTF-8")])),
        (
            "goose",
            of(
                OF_SHELL,
                &[
                    ("GOOSE_TERMINAL", "1"),
                    ("HISTSIZE", "1000"),
                    ("NO_COLOR", "1"),
                ],
            ),
        ),
    ]
}

fn names(what: VariableInput<'_>) -> Vec<String> {
    let names = counted(what).into_iter();
    names.map(|name| name.into_string().unwrap()).collect()
}

const NOTHING: VariableInput<'_> = VariableInput {
    env: &[],
    env_key: None,
    known: None,
    cwd_given: false,
    ecosystem: None,
};

#[test]
fn variables_that_an_app_or_a_terminal_sets_for_itself_do_not_count() {
    // Of an app without a table, the variables that its user's shell exports count, and none of the app's own.
    for (app, env) in apps() {
        let counted = names(VariableInput {
            env: &env,
            cwd_given: true,
            ..NOTHING
        });
        let of_user = [OF_SHELL, OF_DESKTOP, OF_SDK].concat();
        let known = |name: &String| of_user.iter().any(|(known, _)| known == name);
        let left: Vec<&String> = counted.iter().filter(|name| !known(name)).collect();
        assert!(
            left.iter()
                .all(|name| ["LC_ALL", "TMPDIR"].contains(&name.as_str())),
            "{app}: {left:?}"
        );
    }
}

#[test]
fn the_directory_of_a_project_counts_unless_cwd_is_given() {
    let env = env(&[
        ("CLAUDE_PROJECT_DIR", "/a"),
        ("WORKSPACE_FOLDER_PATHS", "/a"),
        ("X", "1"),
    ]);
    let of = |cwd_given| {
        names(VariableInput {
            env: &env,
            cwd_given,
            ..NOTHING
        })
    };
    assert_eq!(
        of(false),
        ["CLAUDE_PROJECT_DIR", "WORKSPACE_FOLDER_PATHS", "X"]
    );
    assert_eq!(of(true), ["X"]);
}

#[test]
fn a_locale_that_python_chose_for_itself_does_not_count() {
    for (value, counts) in [
        ("C.UTF-8", false),
        ("C.utf8", false),
        ("UTF-8", false),
        ("de_DE.UTF-8", true),
    ] {
        let env = env(&[("LC_CTYPE", value)]);
        let counted = names(VariableInput {
            env: &env,
            ..NOTHING
        });
        assert_eq!(counted == ["LC_CTYPE"], counts, "{value}");
    }
}

#[test]
fn of_a_known_server_only_the_variables_it_reads_and_credentials_count() {
    let env = env(&[
        ("A_1", "x"),
        ("B", "x"),
        ("PATH", "/bin"),
        ("LANG", "C"),
        ("SOME_API_KEY", "x"),
        ("CURSOR_API_KEY", "x"),
        ("npm_config_registry", "https://x"),
    ]);
    let counted = names(VariableInput {
        env: &env,
        known: Some(&["A_*"]),
        ..NOTHING
    });
    let wanted = [
        "A_1",
        "SOME_API_KEY",
        "CURSOR_API_KEY",
        "npm_config_registry",
    ];
    assert_eq!(counted, wanted);
    // Named variables count in addition.
    let counted = names(VariableInput {
        env: &env,
        env_key: Some(&["B".into()]),
        known: Some(&["A_*"]),
        ..NOTHING
    });
    assert_eq!(counted[..2], ["A_1", "B"]);
    assert_eq!(counted[2..], wanted[1..]);
}

#[test]
fn a_name_that_ends_in_a_star_stands_for_all_that_begin_like_it() {
    let env = env(&[("AWS_PROFILE", "x"), ("AWS", "x"), ("B", "x")]);
    let counted = names(VariableInput {
        env: &env,
        env_key: Some(&["AWS_*".into()]),
        ..NOTHING
    });
    assert_eq!(counted, ["AWS_PROFILE"]);
}

#[test]
fn settings_of_npm_that_change_the_code_count_unless_npm_set_them_itself() {
    let settings = [
        "npm_config_node_options",
        "npm_config_script_shell",
        "npm_config_prefix",
        "npm_config_cache",
    ];
    let mut pairs = vec![("npm_config_color", "1"), ("npm_lifecycle_event", "npx")];
    pairs.extend(settings.map(|name| (name, "/evil")));
    let planted = env(&pairs);
    let own = env(&[
        ("HOME", "/home/ada"),
        ("npm_node_execpath", "/opt/node/bin/node"),
        ("npm_config_prefix", "/opt/node"),
        ("npm_config_cache", "/home/ada/.npm"),
    ]);
    for known in [Some(NODE), None] {
        let of = |env: &Env| {
            names(VariableInput {
                env,
                known,
                ..NOTHING
            })
        };
        assert_eq!(of(&planted), settings, "{known:?}");
        assert!(
            !of(&own).iter().any(|name| name.starts_with("npm_")),
            "{known:?}"
        );
    }
}

fn command(words: &str) -> Vec<OsString> {
    words.split(' ').map(OsString::from).collect()
}

#[test]
fn the_launcher_decides_whose_registries_count() {
    let (node, python) = (Some(Ecosystem::Node), Some(Ecosystem::Python));
    for (words, ecosystem) in [
        ("npx -y @x/y@1", node),
        ("/opt/bin/npx y", node),
        ("npm exec y", node),
        ("pnpm dlx y", node),
        ("bunx y", node),
        ("uvx y", python),
        ("uv tool run y", python),
        ("uv run y.py", python),
        ("pipx run y", python),
        // Its operand may be either.
        ("uv run npx -y z", None),
        ("sh -c npx", None),
        ("npx --unheard-of y", None),
        ("node y.js", None),
        ("y", None),
    ] {
        assert_eq!(Ecosystem::of(&command(words)), ecosystem, "{words}");
    }
}

#[test]
fn registries_of_the_other_ecosystem_do_not_count() {
    let of_python = ["PIP_INDEX_URL", "UV_INDEX", "UV_DEFAULT_INDEX"];
    let of_node = [
        "npm_config_registry",
        "NPM_CONFIG_USERCONFIG",
        "BUN_CONFIG_REGISTRY",
    ];
    let of_nobody = ["MY_REGISTRY"];
    let all = [&of_python[..], &of_node, &of_nobody].concat();
    let env: Env = all
        .iter()
        .map(|name| (OsString::from(name), "https://r.example".into()))
        .collect();
    for (ecosystem, wanted) in [
        (Some(Ecosystem::Node), [&of_node[..], &of_nobody].concat()),
        (
            Some(Ecosystem::Python),
            [&of_python[..], &of_nobody].concat(),
        ),
        (None, all),
    ] {
        for known in [Some(&["A"][..]), None] {
            let counted = names(VariableInput {
                env: &env,
                known,
                ecosystem,
                ..NOTHING
            });
            assert_eq!(counted, wanted, "{ecosystem:?} {known:?}");
        }
        // A named variable always counts.
        let named = names(VariableInput {
            env: &env,
            env_key: Some(&["UV_INDEX".into()]),
            ecosystem,
            ..NOTHING
        });
        assert!(named.contains(&"UV_INDEX".to_owned()));
    }
}

#[test]
fn every_list_is_documented() {
    let document = include_str!("../../../../../docs/SHARING.md");
    let (_, section) = document.split_once("## The environment\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    for (mark, list) in [
        ("volatile", VOLATILE),
        ("project", PROJECT),
        ("everywhere", EVERYWHERE),
        ("node", NODE),
        ("python", PYTHON),
        ("registry", REGISTRY),
        ("credential", CREDENTIAL),
        ("credential word", CREDENTIAL_WORD),
        ("credential last word", CREDENTIAL_LAST_WORD),
        ("credential unless volatile", CREDENTIAL_UNLESS_VOLATILE),
        ("credential name", CREDENTIAL_NAME),
        ("credential setting", CREDENTIAL_SETTING),
        ("token", &rights::tests::token_prefixes()),
        ("secret address", &rights::tests::secret_addresses()),
        ("no credential", NO_CREDENTIAL),
    ] {
        let (_, shown) = section
            .split_once(&format!("<!-- {mark}: begin -->"))
            .expect(mark);
        let (shown, _) = shown.split_once("<!-- end -->").unwrap();
        let shown: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert_eq!(shown, list, "{mark}");
    }
}
