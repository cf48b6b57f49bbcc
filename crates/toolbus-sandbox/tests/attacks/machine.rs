//! Properties of the machine that a script can read.

use crate::fixture::assert_printed;

#[tokio::test]
async fn the_name_of_the_machine_is_seen_only_without_namespaces() {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_printed("", "print(os.uname().nodename)", ["sandbox\n", &name]).await;
}

#[tokio::test]
async fn what_the_machine_is_can_be_read() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let source = "
information = (ctypes.c_uint64 * 16)()
print(os.uname().release, os.cpu_count() > 0, libc.sysinfo(information), information[4] > 0)
";
    assert_printed("", source, [&*format!("{} True 0 True\n", release.trim()); 2]).await;
}
