//! What the tests stand on: a home with configurations, and an installed Kennel.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_testkit::{Ended, Scope, bin, run};

/// A person with a home, a project, and Kennel installed.
pub(crate) struct Person {
    pub(crate) scope: Scope,
    /// Where Kennel is installed.
    pub(crate) program: PathBuf,
}

impl Person {
    pub(crate) fn new() -> Person {
        let scope = Scope::new("wrap");
        let program = scope.path("home/.local/bin/kennel");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        install(&program);
        std::fs::create_dir(scope.path("project")).unwrap();
        Person { scope, program }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.scope.path("home")
    }

    /// A file below `home` or `project`.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.scope.path(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let file = self.file(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.file(path)).unwrap()
    }

    /// `kennel`, as it is installed, in the project.
    pub(crate) fn command(&self) -> Command {
        self.command_of(&self.program)
    }

    /// A program, in the project.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.scope.command(program);
        command.current_dir(self.scope.path("project"));
        for name in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn kennel(&self, words: &[&str]) -> Ended {
        run(self.command().args(words))
    }

    #[track_caller]
    pub(crate) fn wraps(&self) {
        let ended = self.kennel(&["wrap", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    }

    #[track_caller]
    pub(crate) fn unwraps(&self) {
        let ended = self.kennel(&["unwrap", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    }

    /// What Kennel keeps about what it did.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let dir = self.scope.path("home/.local/state/kennel/wrap");
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// A link is as good as a copy, and quicker, where one can be made.
fn install(program: &Path) {
    let built = env!("CARGO_BIN_EXE_kennel");
    if std::fs::hard_link(built, program).is_err() {
        std::fs::copy(built, program).unwrap();
    }
}

/// The server in the configurations.
pub(crate) fn server() -> String {
    bin("tk-shared").to_str().unwrap().to_owned()
}
