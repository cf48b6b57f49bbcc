//! Progress reports of a running script.

use toolbus_core::progress::Progress;
use toolbus_sandbox::Level;

use crate::fixture::watched;

const LEVELS: [Level; 2] = [Level::Full, Level::NoNamespaces];

fn report_lines(reports: &[Progress]) -> Vec<String> {
    let line = |Progress { progress, total, message }: &Progress| {
        format!("{progress}/{} {}", total.unwrap_or_default(), message.as_deref().unwrap_or_default())
    };
    reports.iter().map(line).collect()
}

#[tokio::test]
async fn lines_are_reported_as_they_are_printed_and_in_order() {
    let script = "
import time
for step in range(1, 4):
    print('step', step)
    time.sleep(1)
";
    for level in LEVELS {
        let (reports, result) = watched(level, script).await;
        assert_eq!(report_lines(&reports), ["1/0 step 1", "2/0 step 2", "3/0 step 3"], "{level}");
        assert_eq!(result, "step 1\nstep 2\nstep 3\n", "{level}: the result has all of it");
    }
}

#[tokio::test]
async fn a_script_reports_its_own_progress() {
    let script = "
import json, os, time

progress = open(int(os.environ['TOOLBUS_PROGRESS_FD']), 'w', buffering=1)
for done in range(1, 4):
    print(json.dumps({'progress': done, 'total': 3, 'message': f'part {done}'}), file=progress)
    print('a line')
    time.sleep(1)
";
    for level in LEVELS {
        let (reports, result) = watched(level, script).await;
        let own: Vec<_> = report_lines(&reports).into_iter().filter(|report| report.contains("/3 ")).collect();
        assert_eq!(own, ["1/3 part 1", "2/3 part 2", "3/3 part 3"], "{level}");
        assert!(reports.len() <= 4, "{level}: its lines are reported before its first report alone: {reports:?}");
        assert_eq!(result, "a line\na line\na line\n", "{level}");
    }
}

#[tokio::test]
async fn the_last_report_of_a_script_that_ends_at_once_comes() {
    let script = "
import os
os.write(int(os.environ['TOOLBUS_PROGRESS_FD']), b'{\"progress\": 1}\\n{\"progress\": 2}\\n')
";
    for level in LEVELS {
        assert_eq!(report_lines(&watched(level, script).await.0), ["2/0 "], "{level}");
    }
}

#[tokio::test]
async fn a_flood_of_reports_is_passed_on_in_part_and_holds_nothing_up() {
    let script = "
import os, time
end = time.monotonic() + 1
sent = 0
while time.monotonic() < end:
    sent += os.write(int(os.environ['TOOLBUS_PROGRESS_FD']), b'{\"progress\": 1}\\n' * 100)
print('sent', sent > 100_000)
os.close(int(os.environ['TOOLBUS_PROGRESS_FD']))
";
    for level in LEVELS {
        let (reports, result) = watched(level, script).await;
        assert!((1..=40).contains(&reports.len()), "{level}: {}", reports.len());
        assert_eq!(result, "sent True\n", "{level}");
    }
}
