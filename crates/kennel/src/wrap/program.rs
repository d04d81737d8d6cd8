//! A path of this program that stays valid in a configuration.

use std::path::{Path, PathBuf};

/// A lasting absolute path: the one on `PATH` if it leads to this program, because the target may have a version in its
/// name. Refuses a path in a build tree, which the next `cargo clean` empties.
pub(crate) fn stable() -> Result<String, String> {
    let exe = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    choose(&exe, std::env::split_paths(&path))
}

fn choose(exe: &Path, path: impl Iterator<Item = PathBuf>) -> Result<String, String> {
    let real = exe.canonicalize().map_err(|_| {
        format!(
            "{} was replaced while it ran; run the command again",
            exe.display()
        )
    })?;
    let leads_here = |candidate: &PathBuf| {
        candidate.is_absolute() && candidate.canonicalize().is_ok_and(|it| it == real)
    };
    let name = exe.file_name().unwrap_or_default();
    let chosen = path.map(|dir| dir.join(name)).find(leads_here);
    let chosen = chosen.unwrap_or_else(|| exe.to_owned());
    if let Some(tree) = build_tree(&real) {
        return Err(format!(
            "{} is inside a build tree ({}): `cargo clean` would break your apps. Install it first, and run the \
             installed one: `cargo xtask install` in its source",
            real.display(),
            tree.display()
        ));
    }
    if chosen.file_name().is_none_or(|name| name != "kennel") {
        return Err(format!(
            "this program is called {}; call it `kennel`, or `unwrap` will not know it",
            chosen.display()
        ));
    }
    let text = chosen.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        format!(
            "{} cannot be written into a configuration",
            chosen.display()
        )
    })
}

/// The build directory that contains a program.
fn build_tree(program: &Path) -> Option<&Path> {
    let is_made_by_cargo = |dir: &&Path| dir.join(".rustc_info.json").is_file();
    let is_called_so = |dir: &&Path| {
        let name = |dir: &Path| {
            dir.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let below = ["debug", "release"];
        below.contains(&name(dir).unwrap_or_default().as_str())
            && dir
                .ancestors()
                .skip(1)
                .take(2)
                .any(|above| name(above).as_deref() == Some("target"))
    };
    let mut dirs = program.ancestors().skip(1);
    dirs.find(|dir| is_made_by_cargo(dir) || is_called_so(dir))
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    fn program(scope: &Scope, path: &str) -> PathBuf {
        let path = scope.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn a_link_on_the_path_is_preferred_to_its_target() {
        let scope = Scope::new("program");
        let real = program(&scope, "opt/kennel-0.1.0/kennel");
        let bin = scope.path("bin");
        std::fs::create_dir(&bin).unwrap();
        assert_eq!(
            choose(&real, [bin.clone()].into_iter()),
            Ok(real.display().to_string())
        );
        std::os::unix::fs::symlink(&real, bin.join("kennel")).unwrap();
        let other = program(&scope, "other/kennel");
        let path = [
            other.parent().unwrap().to_owned(),
            PathBuf::from("."),
            bin.clone(),
        ];
        assert_eq!(
            choose(&real, path.into_iter()),
            Ok(bin.join("kennel").display().to_string())
        );
    }

    #[test]
    fn a_build_tree_is_refused_with_how_to_install() {
        let scope = Scope::new("program");
        for path in [
            "a/target/debug/kennel",
            "b/target/x86_64-unknown-linux-gnu/release/kennel",
            "c/out/debug/kennel",
        ] {
            let exe = program(&scope, path);
            std::fs::create_dir_all(scope.path("c/out")).unwrap();
            std::fs::write(scope.path("c/out/.rustc_info.json"), "").unwrap();
            let error = choose(&exe, std::iter::empty()).unwrap_err();
            assert!(error.contains("cargo xtask install"), "{error}");
        }
        let fine = program(&scope, "debug/kennel");
        assert!(choose(&fine, std::iter::empty()).is_ok());
    }
}
