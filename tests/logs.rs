//! A plugin's messages in the host's log. One test, because a process has one subscriber.

use ep_registry::config::ProviderConfig;
use ep_registry::{InPlace, Runtime};
use ep_tests::logs::Logs;
use ep_tests::ops::AddScalar;
use ep_tests::under::plugin;
use std::time::{Duration, Instant};
use tracing::Level;

fn runtime(instance: &str, options: &[(&str, &str)]) -> Runtime {
    let mut settings = ProviderConfig::new(instance, plugin("test_async"));
    settings.options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Runtime::builder().provider_with(settings).build().unwrap()
}

fn wait_for(what: &str, seen: impl Fn() -> bool) {
    let start = Instant::now();
    while !seen() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn messages_arrive_under_the_instance_s_name() {
    let logs = Logs::install(Level::INFO);
    let alive = |instance: &str| {
        logs.of(instance).iter().filter(|l| l.message.starts_with("the log thread is alive")).count()
    };
    let talkative = runtime("talkative", &[("log_thread", "true")]);
    wait_for("a message of the plugin's thread", || alive("talkative") > 3);
    let line = logs.of("talkative").into_iter().find(|l| l.message.contains("alive")).unwrap();
    assert_eq!(
        (line.level, line.target.as_str(), line.module.as_str()),
        (Level::INFO, "ep::provider", "test_async")
    );
    assert!(line.message.contains(" n="), "the fields are there too: {}", line.message);

    // An error that nobody asks for is told by the log, with the name of the instance that had it.
    let failing = runtime("failing", &[("fail_launch", "1")]);
    let device = failing.devices()[0].clone();
    let mut buffer = device.upload(&[1.0f32]).unwrap();
    let stream = device.stream().unwrap();
    AddScalar::new(&failing, &device).launch(&stream, 1, InPlace, 1.0, &mut buffer).unwrap();
    drop((stream, buffer));
    let told = |l: &ep_tests::logs::Line| l.message.contains("launch 1 fails");
    assert!(logs.lines().iter().any(|l| l.level <= Level::WARN && told(l)), "{:#?}", logs.of(""));
    drop((failing, device));

    // Nothing comes from an instance after its end, and no message is lost on the way to a live one.
    let quiet = runtime("quiet", &[]);
    drop(talkative);
    let at_end = logs.lines().len();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(logs.lines().len(), at_end);
    drop(quiet);
    assert!(logs.lines().iter().all(|l| l.level <= Level::INFO), "the host's filter holds in the plugin");

    // A provider that does not load is a warning of the host.
    let report = Runtime::builder().provider("gone", "/nowhere/libgone.so").build().unwrap();
    assert!(report.devices().is_empty());
    let warned = |l: &ep_tests::logs::Line| l.level == Level::WARN && l.message.contains("libgone.so");
    assert!(logs.lines().iter().any(warned));
}
