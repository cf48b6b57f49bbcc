//! Properties of the machine that a script can read.

use toolbus_sandbox::Level;

use crate::fixture::{LEVELS, printed};

#[tokio::test]
async fn the_name_of_the_machine_is_seen_only_without_namespaces() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for level in LEVELS {
        let found = printed(level, "", "print(os.uname().nodename)").await;
        let expected = if level == Level::Full { "sandbox\n" } else { &*name };
        assert_eq!(found, expected, "{level}");
    }
}

#[tokio::test]
async fn what_the_machine_is_can_be_read() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let source = "
information = (ctypes.c_uint64 * 16)()
print(os.uname().release, os.cpu_count() > 0, libc.sysinfo(information), information[4] > 0)
";
    for level in LEVELS {
        assert_eq!(printed(level, "", source).await, format!("{} True 0 True\n", release.trim()), "{level}");
    }
}
