//! Change detection: the files that a server was started from, and whether they have changed. These are the program,
//! its script and interpreter, and the files that identify the package behind a launcher. Daemons, dedicated sessions
//! and `kennel guard --takeover older` all use it.
//!
//! Nothing watches the files: they are checked when there is a reason to, which is cheap. Parts of a command whose
//! meaning is uncertain are not guessed: a server that seems unchanged keeps running.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kennel_core::hello::Text;
use kennel_sys::fs::FileFacts;
use kennel_sys::text::os_string;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::interpreter::{self, Language};
use crate::search_path;
use crate::sharing::launcher::{self, Launched, Registry};

/// Time since the last change after which an update counts as finished: an installer writes many files.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of a package's files that are checked, so that a check stays cheap.
const MAX_FILES: usize = 256;

/// The files that a server was started from, as they were then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sources(Vec<SourceFile>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SourceFile {
    path: Text,
    /// `None`: it did not exist yet; a launcher may install it first.
    mark: Option<Mark>,
}

/// Identifies a file and its content without reading it. For a package's directory, `size` is a hash of its Python
/// files' marks, and `modified` the latest of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    dev: u64,
    ino: u64,
    size: u64,
    modified: (i64, i64),
}

/// Result of [`Sources::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileChange {
    Unchanged,
    /// Changed, and possibly still changing.
    Changing,
    Changed,
}

impl Sources {
    /// The files that this command will be started from.
    pub(crate) fn of(
        command: &[OsString],
        cwd: &Path,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Sources {
        let Some(name) = command.first() else {
            return Sources::default();
        };
        let path = variable("PATH");
        let context = SearchContext {
            cwd,
            program: search_path::find(name, cwd, path.as_deref()),
            home: variable("HOME").map(PathBuf::from),
            npm_cache: variable("npm_config_cache").map(PathBuf::from),
            python_path: variable("PYTHONPATH"),
        };
        let words: Vec<String> = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut paths: Vec<PathBuf> = context.program.iter().cloned().collect();
        paths.extend(context.interpreters(path.as_deref()));
        paths.extend(context.argument(command));
        for word in &words {
            // A file that identifies its package.
            paths.extend(package_of(&context.cwd.join(word)));
        }
        if let Some(launched) = launcher::launched(&words) {
            paths.extend(context.files_of(&launched));
        }
        paths.sort();
        paths.dedup();
        let source = |path: PathBuf| SourceFile {
            mark: FileState::at(&path).map(|state| state.mark),
            path: Text::from(path.as_os_str().as_encoded_bytes()),
        };
        Sources(paths.into_iter().map(source).collect())
    }

    /// Checks whether the files changed. A file that did not exist before is recorded as it is now.
    pub(crate) fn check(&mut self) -> FileChange {
        let mut change = FileChange::Unchanged;
        for source in &mut self.0 {
            let path = PathBuf::from(os_string(source.path.as_bytes()));
            match (source.mark, FileState::at(&path)) {
                (None, Some(now)) => source.mark = Some(now.mark),
                // The file is missing, and may be about to be replaced.
                (Some(_), None) => return FileChange::Changing,
                (Some(then), Some(now)) if then != now.mark => match is_settled(now.changed) {
                    true => change = FileChange::Changed,
                    false => return FileChange::Changing,
                },
                _ => {}
            }
        }
        change
    }

    /// Whether any file changed, or is still changing.
    pub(crate) fn are_stale(&self) -> bool {
        self.clone().check() != FileChange::Unchanged
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The present state of a file or a package's directory.
struct FileState {
    mark: Mark,
    /// When it was last changed, in seconds since 1970. The change time, not the modification time: an archive may
    /// restore an old one.
    changed: i64,
}

impl FileState {
    fn at(path: &Path) -> Option<FileState> {
        // Follows links: their targets are what runs.
        let facts = FileFacts::at(path).ok()?;
        if facts.is_dir() {
            return Some(FileState::of_package(path, &facts));
        }
        Some(FileState {
            mark: Mark::of(&facts),
            changed: facts.changed(),
        })
    }

    /// All Python files below a directory, as one mark. Files that Python itself writes there (`__pycache__`) do not
    /// count.
    fn of_package(dir: &Path, facts: &FileFacts) -> FileState {
        let mut files = Vec::new();
        python_files(dir, &mut files);
        files.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut digest = Sha256::new();
        let mut state = FileState {
            mark: Mark {
                size: 0,
                modified: (0, 0),
                ..Mark::of(facts)
            },
            changed: 0,
        };
        for (path, facts) in &files {
            let Mark {
                ino,
                size,
                modified,
                ..
            } = Mark::of(facts);
            digest.update(path.as_os_str().as_encoded_bytes());
            digest.update([0]);
            for number in [ino, size, modified.0 as u64, modified.1 as u64] {
                digest.update(number.to_le_bytes());
            }
            state.mark.modified = state.mark.modified.max(modified);
            state.changed = state.changed.max(facts.changed());
        }
        let digest = digest.finalize();
        state.mark.size = digest
            .iter()
            .take(8)
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        state
    }
}

fn python_files(dir: &Path, files: &mut Vec<(PathBuf, FileFacts)>) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        if files.len() >= MAX_FILES {
            return;
        }
        let path = entry.path();
        // Does not follow links: one may lead back here.
        match entry.metadata() {
            Ok(meta) if meta.is_dir() && path.join("__init__.py").exists() => {
                python_files(&path, files);
            }
            Ok(meta) if meta.is_file() && path.extension() == Some(OsStr::new("py")) => {
                files.push((path, FileFacts::from(&meta)));
            }
            _ => {}
        }
    }
}

impl Mark {
    fn of(facts: &FileFacts) -> Mark {
        Mark {
            dev: facts.id().device(),
            ino: facts.id().number(),
            size: facts.size(),
            modified: facts.modified(),
        }
    }
}

/// Whether the last change was at least [`SETTLE_TIME`] ago.
fn is_settled(changed: i64) -> bool {
    let changed = Duration::from_secs(u64::try_from(changed).unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // If the clock was set back, the age is unknown.
    now.map_or(true, |now| now.abs_diff(changed) >= SETTLE_TIME)
}

/// The directory and environment in which a command runs.
struct SearchContext<'a> {
    cwd: &'a Path,
    program: Option<PathBuf>,
    home: Option<PathBuf>,
    npm_cache: Option<PathBuf>,
    /// `PYTHONPATH`: further directories in which Python looks for modules.
    python_path: Option<OsString>,
}

impl SearchContext<'_> {
    /// The interpreters of the program, if it is a script.
    fn interpreters(&self, path: Option<&OsStr>) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut script = self.program.clone();
        for _ in 0..interpreter::MAX_DEPTH {
            let head = script.and_then(|script| interpreter::read_head(&script).ok());
            let line = head.and_then(|head| interpreter::shebang(&head));
            script = line.and_then(|line| {
                search_path::find(interpreter::interpreter_of(&line)?, self.cwd, path)
            });
            found.extend(script.clone());
        }
        found
    }

    /// The script that the program runs, if it is an interpreter.
    fn argument(&self, command: &[OsString]) -> Option<PathBuf> {
        let (name, arguments) = command.split_first()?;
        let script = Language::of(Path::new(name))?.script(arguments)?;
        let script = self.cwd.join(script);
        script.is_file().then_some(script)
    }

    fn files_of(&self, launched: &Launched) -> Vec<PathBuf> {
        match launched {
            Launched::Script(path) => vec![self.cwd.join(path)],
            Launched::Program(_) => Vec::new(),
            Launched::Module(name) => self.module(name),
            Launched::Package {
                registry, names, ..
            } => {
                let names = names.iter().map(String::as_str);
                match registry {
                    Registry::Npm => names.flat_map(|name| self.npm(name)).collect(),
                    Registry::PyPi => names.flat_map(|name| self.tool(name)).collect(),
                    Registry::Elsewhere => Vec::new(),
                }
            }
        }
    }

    /// The locations at which `npx` finds a package: in the project, or in its cache.
    fn npm(&self, name: &str) -> Vec<PathBuf> {
        let inside = |dir: &Path| dir.join("node_modules").join(name).join("package.json");
        let project = self.cwd.ancestors().map(inside).find(|path| path.exists());
        if let Some(found) = project {
            return vec![found];
        }
        let default = self.home.as_ref().map(|home| home.join(".npm"));
        let cache = self.npm_cache.clone().or(default);
        let kept = cache.and_then(|cache| std::fs::read_dir(cache.join("_npx")).ok());
        let kept = kept.into_iter().flatten().flatten();
        let kept = kept.map(|dir| inside(&dir.path()));
        kept.filter(|path| path.exists()).collect()
    }

    /// The files in which installed Python tools describe themselves. Those in the cache of `uvx` never change: another
    /// version is another directory.
    fn tool(&self, name: &str) -> Vec<PathBuf> {
        let share = self.home.as_ref().map(|home| home.join(".local/share"));
        let name = launcher::normalised(name);
        let tools = [
            format!("uv/tools/{name}/uv-receipt.toml"),
            format!("pipx/venvs/{name}/pipx_metadata.json"),
        ];
        let tools = tools
            .iter()
            .filter_map(|tool| Some(share.as_ref()?.join(tool)));
        tools.filter(|path| path.exists()).collect()
    }

    /// The locations at which Python finds a module: beside its interpreter, in the working directory, or on
    /// `PYTHONPATH`. An installed package is written as a whole, so its first files identify it; elsewhere a package is
    /// edited file by file.
    fn module(&self, name: &str) -> Vec<PathBuf> {
        let name = name.replace('.', "/");
        let python_path = self.python_path.as_deref().unwrap_or_default();
        let python_path = std::env::split_paths(python_path).filter(|dir| *dir != Path::new(""));
        let edited = python_path.map(|dir| self.cwd.join(dir));
        let edited: Vec<PathBuf> = edited.chain([self.cwd.to_owned()]).collect();
        let prefix = self.program.as_deref().and_then(|it| it.parent()?.parent());
        let versions = prefix.and_then(|prefix| std::fs::read_dir(prefix.join("lib")).ok());
        let versions = versions.into_iter().flatten().flatten();
        // Debian's own packages are in the second.
        let sites = versions
            .flat_map(|dir| ["site-packages", "dist-packages"].map(|it| dir.path().join(it)));
        let package = name.split('/').next().unwrap_or(&name);
        let packages = edited.iter().map(|context| context.join(package));
        let sources: Vec<PathBuf> = packages
            .filter(|it| it.join("__init__.py").exists())
            .collect();
        sites
            .chain(edited)
            .flat_map(|context| {
                let module = context.join(&name);
                let file = context.join(format!("{name}.py"));
                [module.join("__init__.py"), module.join("__main__.py"), file]
            })
            .filter(|path| path.exists())
            .chain(sources)
            .collect()
    }
}

/// A script of an installed package, and the files that identify its version.
fn package_of(script: &Path) -> Vec<PathBuf> {
    let parts: Vec<&OsStr> = script.iter().collect();
    let last = parts.iter().rposition(|part| *part == "node_modules");
    let Some(at) = last.filter(|_| script.is_file()) else {
        return Vec::new();
    };
    let scoped = parts
        .get(at + 1)
        .is_some_and(|it| it.as_encoded_bytes().starts_with(b"@"));
    let length = at + if scoped { 3 } else { 2 };
    let Some(package) = parts.get(..length) else {
        return Vec::new();
    };
    let package: PathBuf = package.iter().collect();
    vec![script.to_owned(), package.join("package.json")]
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    fn write(path: &Path, content: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn of(scope: &Scope, command: &[&str]) -> Sources {
        let words: Vec<OsString> = command.iter().map(OsString::from).collect();
        let variable = |name: &str| match name {
            "PATH" => Some("/usr/bin:/bin".into()),
            "HOME" => Some(scope.path("home").into_os_string()),
            "PYTHONPATH" => Some(":src".into()),
            _ => None,
        };
        Sources::of(&words, scope.dir(), variable)
    }

    /// The files below the scope that a command is started from.
    fn files(scope: &Scope, command: &[&str]) -> Vec<String> {
        let path = |source: &SourceFile| String::from_utf8(source.path.as_bytes().to_vec()).ok();
        let all = of(scope, command).0;
        let paths = all.iter().filter_map(path);
        let inside = paths.filter_map(|path| {
            let path = Path::new(&path).strip_prefix(scope.dir()).ok()?;
            Some(path.display().to_string())
        });
        inside.collect()
    }

    #[test]
    fn a_command_is_started_from_its_script_or_package_and_from_nothing_it_only_names() {
        let scope = Scope::new("sources");
        for file in [
            "s.py",
            "notes.db",
            "m/__init__.py",
            "node_modules/@x/y/package.json",
            "node_modules/@x/y/dist/index.js",
            "home/.npm/_npx/0a/node_modules/z/package.json",
            "home/.local/share/uv/tools/mcp-tool/uv-receipt.toml",
        ] {
            write(&scope.path(file), "");
        }
        let none: [&str; 0] = [];
        let package = "node_modules/@x/y/package.json";
        let script = "node_modules/@x/y/dist/index.js";
        assert_eq!(files(&scope, &["python3", "s.py", "notes.db"]), ["s.py"]);
        let module = files(&scope, &["python3", "-m", "m"]);
        assert_eq!(module, ["m", "m/__init__.py"]);
        assert_eq!(files(&scope, &["sh", "-e", "s.py"]), ["s.py"]);
        assert_eq!(
            files(&scope, &["npx", "-y", "@x/y@1.2", "notes.db"]),
            [package]
        );
        assert_eq!(files(&scope, &["node", script]), [script, package]);
        let cached = "home/.npm/_npx/0a/node_modules/z/package.json";
        assert_eq!(files(&scope, &["npx", "z"]), [cached]);
        let tool = "home/.local/share/uv/tools/mcp-tool/uv-receipt.toml";
        assert_eq!(files(&scope, &["uvx", "Mcp_Tool"]), [tool]);
        assert_eq!(files(&scope, &["sh", "-c", "a; b notes.db"]), none);
        assert_eq!(files(&scope, &[]), none);
    }

    #[test]
    fn any_file_of_a_package_in_the_working_directory_counts_and_no_cache_of_it() {
        let scope = Scope::new("package");
        for file in [
            "m/__init__.py",
            "m/__main__.py",
            "m/sub/__init__.py",
            "m/sub/tool.py",
        ] {
            write(&scope.path(file), "1");
        }
        let sources = of(&scope, &["python3", "-m", "m"]);
        assert!(!sources.are_stale());
        write(&scope.path("m/__pycache__/tool.pyc"), "1");
        write(&scope.path("m/data.json"), "{}");
        assert!(!sources.are_stale());
        write(&scope.path("m/sub/tool.py"), "22");
        assert!(sources.are_stale());
        let sources = of(&scope, &["python3", "-m", "m.sub"]);
        write(&scope.path("m/sub/new.py"), "1");
        assert!(sources.are_stale(), "an added file");
        let sources = of(&scope, &["python3", "-m", "m"]);
        std::fs::remove_file(scope.path("m/sub/new.py")).unwrap();
        assert!(sources.are_stale(), "a removed file");
    }

    #[test]
    fn a_package_on_the_python_path_or_among_those_of_debian_counts() {
        let scope = Scope::new("python-path");
        write(&scope.path("src/p/__init__.py"), "1");
        write(&scope.path("src/p/tool.py"), "1");
        let sources = of(&scope, &["python3", "-m", "p"]);
        write(&scope.path("src/p/tool.py"), "22");
        assert!(sources.are_stale(), "below PYTHONPATH");
        write(&scope.path("usr/bin/python3"), "");
        write(&scope.path("usr/lib/python3/dist-packages/q.py"), "1");
        let python = scope.path("usr/bin/python3");
        let files = files(&scope, &[python.to_str().unwrap(), "-m", "q"]);
        assert!(
            files
                .iter()
                .any(|file| file.ends_with("dist-packages/q.py")),
            "{files:?}"
        );
    }

    #[test]
    fn a_script_counts_and_so_does_its_interpreter() {
        let scope = Scope::new("interpreter");
        write(&scope.path("sh"), "#!/bin/sh\n");
        write(
            &scope.path("server"),
            &format!("#!{}\n", scope.path("sh").display()),
        );
        assert_eq!(files(&scope, &["./server"]), ["server", "sh"]);
        let sources = of(&scope, &["./server"]);
        write(&scope.path("sh"), "#!/bin/bash\n");
        assert!(sources.are_stale());
    }

    #[test]
    fn a_change_counts_once_it_has_settled_and_a_missing_file_is_waited_for() {
        let scope = Scope::new("changes");
        let script = scope.path("s.py");
        write(&script, "1");
        let mut sources = of(&scope, &["python3", "s.py"]);
        assert_eq!(sources.check(), FileChange::Unchanged);
        assert!(!sources.are_stale());
        std::fs::remove_file(&script).unwrap();
        assert_eq!(sources.check(), FileChange::Changing);
        write(&script, "22");
        assert_eq!(sources.check(), FileChange::Changing);
        assert!(sources.are_stale());
        kennel_testkit::wait_for("it settles", || {
            (sources.check() == FileChange::Changed).then_some(())
        });
    }

    #[test]
    fn a_file_that_a_launcher_installs_first_is_taken_as_it_is() {
        let scope = Scope::new("first");
        let script = scope.path("later.py");
        let mut sources = of(&scope, &["python3", "later.py"]);
        assert_eq!(sources.check(), FileChange::Unchanged);
        write(&script, "1");
        assert_eq!(sources.check(), FileChange::Unchanged);
        write(&script, "22");
        assert_ne!(sources.check(), FileChange::Unchanged);
    }
}
