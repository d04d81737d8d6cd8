//! Configurations where other users can write: what they plant decides nothing about files of ours (rule 9).

mod needs_root {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
    use std::os::unix::process::CommandExt;
    use std::path::Path;

    use kennel_testkit::{count, run, wait_for};

    use crate::stage::Person;

    const STRANGER: u32 = 65534;
    const TEXT: &str = "{\"mcpServers\": {\"a\": {\"command\": \"thing\"}}}\n";

    fn gives_away(path: &Path) {
        lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_link_that_another_user_made_to_a_file_of_ours_is_not_followed() {
        let person = Person::new();
        let ours = person.write("home/.cursor/mcp.json", TEXT);
        let link = person.file("project/.mcp.json");
        symlink(&ours, &link).unwrap();
        gives_away(&link);
        let named = ["--yes", "--file", link.to_str().unwrap()];
        let ended = run(person.command().arg("wrap").args(named));
        assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
        assert!(
            ended.stderr.contains("is a link of uid 65534"),
            "{}",
            ended.stderr
        );
        assert_eq!(person.read("home/.cursor/mcp.json"), TEXT);
        // Ours is, as those of dotfiles are.
        lchown(&link, Some(0), Some(0)).unwrap();
        let ended = run(person.command().arg("wrap").args(named));
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_ne!(person.read("home/.cursor/mcp.json"), TEXT);
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_file_of_another_user_stays_theirs_and_the_backup_is_ours_alone() {
        let person = Person::new();
        let file = person.write("project/.mcp.json", TEXT);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        for path in [file.parent().unwrap(), &file] {
            chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        person.wraps();
        let meta = file.metadata().unwrap();
        let seen = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        assert_eq!(seen, (STRANGER, STRANGER, 0o640));
        for kept in person.kept() {
            let meta = kept.metadata().unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600));
        }
        person.unwraps();
        assert_eq!(person.read("project/.mcp.json"), TEXT);
        assert_eq!(file.metadata().unwrap().uid(), STRANGER);
    }

    /// The new file would be another group's, with the rights of the former.
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_file_of_a_group_that_its_owner_is_not_in_is_not_given_to_another_group() {
        const ANOTHER_GROUP: u32 = 12345;
        let person = Person::new();
        std::fs::set_permissions(person.scope.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        let kennel = person.file("kennel");
        std::fs::copy(env!("CARGO_BIN_EXE_kennel"), &kennel).unwrap();
        let theirs = person.file("theirs");
        let file = person.write("theirs/mcp.json", TEXT);
        chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
        chown(&file, Some(STRANGER), Some(ANOTHER_GROUP)).unwrap();
        let wraps = || {
            let mut command = person.scope.command(&kennel);
            command.uid(STRANGER).gid(STRANGER).env("HOME", &theirs);
            run(command.args(["wrap", "--yes", "--file"]).arg(&file))
        };
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o660)).unwrap();
        let ended = wraps();
        assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains("chgrp"), "{}", ended.stderr);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), TEXT);
        // Where the group has no right that others lack, nothing is opened.
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let ended = wraps();
        assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
        assert_ne!(std::fs::read_to_string(&file).unwrap(), TEXT);
    }

    /// The stranger makes the file a link, and a file again, and leaves links where ours would be written aside.
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_file_that_becomes_a_link_between_look_and_write_leads_nowhere() {
        const SWAP: &str = "cd \"$0\" && while :; do \
            ln -sf ../precious.json swapped && mv -f swapped .mcp.json; \
            cp ../text plain && mv -f plain .mcp.json; : > began; done 2>/dev/null";
        let person = Person::new();
        let precious = person.write("precious.json", TEXT);
        person.write("text", TEXT);
        let project = person.file("project");
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(person.scope.dir(), open).unwrap();
        gives_away(&project);
        let before = precious.metadata().unwrap().ino();
        let mut stranger = person.scope.command("sh");
        stranger.args(["-c", SWAP]).arg(&project);
        let mut stranger = stranger.uid(STRANGER).gid(STRANGER).spawn().unwrap();
        wait_for("it began", || project.join("began").exists().then_some(()));
        for _ in 0..count(200) {
            // Whether it succeeds or is told that the file changed: what counts is what did not.
            run(person
                .command()
                .args(["wrap", "--yes", "--client", "claude-code"]));
            assert_eq!(person.read("precious.json"), TEXT);
            assert_eq!(precious.metadata().unwrap().ino(), before, "replaced");
        }
        assert_eq!(stranger.try_wait().unwrap(), None);
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_directory_link_of_another_user_in_the_middle_of_a_path_is_not_followed() {
        let person = Person::new();
        person.write("home/secret/.cursor/mcp.json", TEXT);
        let link = person.file("project/shared");
        symlink(person.file("home/secret"), &link).unwrap();
        gives_away(&link);
        let path = link.join(".cursor/mcp.json");
        let named = ["--yes", "--file", path.to_str().unwrap()];
        for command in ["wrap", "unwrap"] {
            let ended = run(person.command().arg(command).args(named));
            assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
            let told = &ended.stderr;
            assert!(
                told.contains("project/shared is a link of uid 65534"),
                "{told}"
            );
            assert_eq!(person.read("home/secret/.cursor/mcp.json"), TEXT);
        }
        // Root's own is followed, whichever way it leads.
        lchown(&link, Some(0), Some(0)).unwrap();
        std::fs::remove_file(&link).unwrap();
        symlink("../home/./secret/../secret", &link).unwrap();
        let ended = run(person.command().arg("wrap").args(named));
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_ne!(person.read("home/secret/.cursor/mcp.json"), TEXT);
    }
}
