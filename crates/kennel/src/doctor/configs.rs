//! What people wrote: `servers.toml`, and the configurations of their apps.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Finding;
use crate::sharing::ServersToml;
use crate::sharing::launcher::{self, Launched};
use crate::wrap::entry::Entry;
use crate::wrap::places::{Bases, Found};
use crate::wrap::{quoted, splice};

pub(super) fn servers_toml() -> Result<Vec<Finding>, String> {
    let finding = |warning: String| Finding {
        check: "servers.toml",
        what: warning,
        why: "what it says there is not done",
        mend: "correct the line".to_owned(),
        pid: None,
    };
    let warnings = ServersToml::complaints_of_user();
    Ok(warnings.into_iter().map(finding).collect())
}

/// A configuration and its servers, or why it cannot be read.
type Configuration = (Found, Result<Vec<Entry>, String>);

/// Every configuration that is there.
fn configurations() -> Result<Vec<Configuration>, String> {
    let bases = Bases::of_user().ok_or("HOME is not set to an absolute path")?;
    let found = bases.find(&[]);
    let read = |found: Found| {
        let entries = crate::wrap::entries_of(&found);
        (found, entries)
    };
    Ok(found.into_iter().map(read).collect())
}

/// Configurations that start servers without Kennel, or cannot be read.
pub(super) fn apps() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for (found, entries) in configurations()? {
        let path = found.path.display();
        let title = found.client.map_or("", |client| client.title);
        let finding = |what, why, mend| Finding {
            check: "apps",
            what,
            why,
            mend,
            pid: None,
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                let what = format!("{title}: {path}: {error}");
                let why = "the app may not read it either";
                findings.push(finding(what, why, "correct the line".to_owned()));
                continue;
            }
        };
        let wrap = format!("kennel wrap --file {}", quoted(&found.path));
        let commands = entries
            .iter()
            .filter_map(|entry| Some((entry, entry.command()?)));
        let (behind, direct): (Vec<_>, Vec<_>) =
            commands.partition(|(_, command)| splice::behind(command).is_some());
        if !direct.is_empty() {
            let names: Vec<&str> = direct
                .iter()
                .map(|(entry, _)| entry.name.as_str())
                .collect();
            let what = format!("{title} starts {} directly ({path})", names.join(", "));
            let why = "a server for every session, and orphans when the app is killed";
            findings.push(finding(what, why, wrap.clone()));
        }
        for (entry, command) in behind {
            let program = Path::new(&command[0]);
            if program.is_absolute() && !program.exists() {
                let what = format!(
                    "{title}: {} is behind {}, which is gone ({path})",
                    entry.name, command[0]
                );
                findings.push(finding(
                    what,
                    "the app cannot start this server",
                    wrap.clone(),
                ));
            }
        }
    }
    Ok(findings)
}

/// Servers whose program is not there.
pub(super) fn commands() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for (found, entries) in configurations()? {
        let entries = match entries {
            Ok(entries) => entries,
            // What is wrong with it is another check's.
            Err(_) => {
                let why = format!("the servers of {} are not known", found.path.display());
                findings.push(super::unseen("commands", &why));
                continue;
            }
        };
        for entry in entries {
            let Some(command) = entry.command() else {
                continue;
            };
            let behind = splice::behind(&command);
            let own = behind.map_or(0, |behind| behind.server);
            let (kennel, server) = command.split_at(own);
            for missing in missing(kennel, server, entry.has_cwd) {
                findings.push(Finding {
                    check: "commands",
                    what: format!(
                        "{}: {missing} is not found ({})",
                        entry.name,
                        found.path.display()
                    ),
                    why: "the app cannot start this server",
                    mend: format!("install {missing}, or take the server out of the file"),
                    pid: None,
                });
            }
        }
    }
    Ok(findings)
}

/// What a command needs and does not find: its program, the script that an interpreter is to read, the directory
/// where Kennel is to start it.
fn missing<'c>(kennel: &'c [String], server: &'c [String], has_cwd: bool) -> Vec<&'c str> {
    // What the app fills in, or looks for elsewhere, cannot be judged from here.
    let judged = |word: &&str| !word.contains(['$', '{', '~']);
    let absolute = |word: &&str| word.starts_with('/');
    let program = server.first().map(String::as_str);
    let program = program.filter(|word| !has_cwd || absolute(word));
    let program = program.filter(judged).filter(|word| !is_there(word));
    let is_script = |word: &&str| match launcher::launched(server) {
        Some(Launched::Script(path)) => path == *word,
        // A file of an installed package stands for the package.
        _ => word.contains("/node_modules/"),
    };
    let words = server.iter().skip(1).map(String::as_str);
    let mut scripts = words.filter(absolute).filter(judged).filter(is_script);
    let script = scripts.find(|word| !Path::new(word).exists());
    let cwd = kennel.iter().skip_while(|word| *word != "--cwd").nth(1);
    let cwd = cwd
        .map(String::as_str)
        .filter(|dir| !Path::new(dir).is_dir());
    [program, script, cwd].into_iter().flatten().collect()
}

/// Whether a program is where a shell would look for it.
fn is_there(program: &str) -> bool {
    let executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return executable(Path::new(program)) || !Path::new(program).is_absolute();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| executable(&dir.join(program)))
}
