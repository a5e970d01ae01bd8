//! Which devices there are, in which order: `CUDA_VISIBLE_DEVICES`, option `visible`, and both. The variable is of a
//! process, so each case has its own.

mod rig;

use ep_core::Code;
use ep_core::provider::{Device, Provider};
use ep_cuda::provider::CudaProvider;
use ep_cuda::settings::Settings;
use rig::{Rig, Setup};
use std::process::Command;

/// The variable that the driver obeys.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The child's option `visible`.
const OPTION: &str = "EP_TEST_VISIBLE";
/// What the child prints before its answer.
const ANSWER: &str = "answer: ";

/// The numbers of the devices that a provider has on a machine with four, or the error.
fn list(visible: Option<String>) -> ep_core::Result<String> {
    let rig = Rig::new(Setup { devices: 4, environment: 1, ..Setup::default() });
    let provider = CudaProvider::new(&Settings { visible, ..rig.settings() })?;
    let names = (0..provider.device_count()?).map(|i| Ok(provider.open_device(i)?.info().name));
    let names: Vec<String> = names.collect::<ep_core::Result<_>>()?;
    Ok(names.join(" ").replace("Fake GPU ", ""))
}

#[test]
#[ignore = "a child of the test below"]
fn child() {
    let answer = list(std::env::var(OPTION).ok());
    println!("\n{ANSWER}{}", answer.unwrap_or_else(|e| format!("{:?} {}", e.code(), e.message())));
}

fn ask(variable: Option<&str>, option: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "child", "--nocapture"]).env_remove(VARIABLE).env_remove(OPTION);
    command.envs(variable.map(|v| (VARIABLE, v))).envs(option.map(|v| (OPTION, v)));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answer = text.lines().find_map(|line| line.strip_prefix(ANSWER));
    answer.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

#[test]
fn order_and_filter_follow_the_variable_and_the_option() {
    const MIG: &str = "MIG-f2616b65-2067-7075-2075-756964202e2e";
    let cases: [(Option<&str>, Option<&str>, &str); 20] = [
        (None, None, "0 1 2 3"),
        (Some("2,0"), None, "2 0"),
        (Some("3"), None, "3"),
        (Some("GPU-f3616b65,1"), None, "3 1"),
        (Some("1, GPU-f0616b65-2067-7075-2075-756964202e2e"), None, "1 0"),
        // What names no device ends the list.
        (Some("1,9,0"), None, "1"),
        (Some("2,-1,0"), None, "2"),
        (Some("3,GPU-ff,0"), None, "3"),
        // One instance of a divided device, and no more.
        (Some(MIG), None, "2"),
        (Some(&format!("{MIG},0")), None, "2"),
        (None, Some("2,0"), "2 0"),
        (None, Some("GPU-f1"), "1"),
        // The option chooses among what the variable left, by its numbers.
        (Some("3,1,2"), Some("1,0"), "1 3"),
        (Some("3,1,2"), Some("GPU-f2,0"), "2 3"),
        (Some(MIG), Some("MIG-f2616b65"), "2"),
        (Some("3,1"), Some("2"), "InvalidArgument option `visible`: `2` is no device: the driver shows 2"),
        (Some("3,1"), Some("GPU-f0"), "InvalidArgument option `visible`: `GPU-f0` fits no device"),
        (Some(""), None, "Unavailable cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        (Some("-1"), None, "Unavailable cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        (Some("0,1"), Some(""), "Unavailable the driver shows no device; see CUDA_VISIBLE_DEVICES"),
    ];
    for (variable, option, expected) in cases {
        let found = ask(variable, option);
        let same = if expected.starts_with(char::is_numeric) {
            found == expected
        } else {
            found.starts_with(expected)
        };
        assert!(same, "{VARIABLE} {variable:?}, `visible` {option:?}: {found}, not {expected}");
    }
}

/// A host's numbers are those of the driver, whatever they are of the machine.
#[test]
fn devices_keep_their_identity_under_other_numbers() {
    let rig = Rig::new(Setup { devices: 4, ..Setup::default() });
    let runtime = rig.runtime(&[("visible", "3,1")]);
    let of = |name: &str| {
        let info = runtime.device(name).unwrap().info().clone();
        (info.name, info.uuid[0], info.pci)
    };
    assert_eq!(of("cuda:0"), ("Fake GPU 3".to_owned(), 0xf3, "0000:1e:00.0".to_owned()));
    assert_eq!(of("cuda:1"), ("Fake GPU 1".to_owned(), 0xf1, "0000:1c:00.0".to_owned()));
    assert!(runtime.device("cuda:2").is_err());
}

/// One that the driver does not tell of costs the provider none of its others.
#[test]
fn a_device_that_does_not_answer_costs_only_itself() {
    let rig = Rig::new(Setup { devices: 4, broken: 1, lost: 3, ..Setup::default() });
    let runtime = rig.runtime(&[]);
    let names: Vec<_> = runtime.devices().iter().map(|d| (d.name(), d.info().name.as_str())).collect();
    assert_eq!(names, [("cuda:0", "Fake GPU 0"), ("cuda:1", "Fake GPU 2")]);
    let report = &runtime.report().entries[0];
    for part in ["device 1: cuDeviceTotalMem", "device 3: cuDeviceGet", "CUDA_ERROR_DEVICE_UNAVAILABLE (46)"]
    {
        assert!(report.reason.contains(part), "no `{part}` in {report:?}");
    }
    // It is nobody's peer: those that answer reach their own memory, pinned memory and each other's.
    for device in runtime.devices() {
        assert_eq!(device.info().reads.len(), 3, "{:?}", device.info());
    }
    drop(runtime);
    // By its number, and where it has one by its identity, it may be named or left out as any other.
    let names = |visible: &str, context: &str| -> ep_core::Result<Vec<String>> {
        let settings = Settings { visible: Some(visible.into()), ..rig.settings() };
        let context = ep_cuda::settings::Contexts::read(context)?;
        let provider = CudaProvider::new(&Settings { context, ..settings })?;
        let name = |i| provider.open_device(i).map_or_else(|e| format!("{:?}", e.code()), |d| d.info().name);
        Ok((0..provider.device_count()?).map(name).collect())
    };
    assert_eq!(
        names("2,GPU-f1,3", "primary,current"),
        Ok(vec!["Fake GPU 2".into(), "Unavailable".into(), "Unavailable".into()])
    );
    assert_eq!(names("2,0", ""), Ok(vec!["Fake GPU 2".into(), "Fake GPU 0".into()]));
    let error = names("GPU-f3", "").unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(
        error.message().contains("fits no device, and the driver does not tell all identities"),
        "{error}"
    );
    rig.assert_clean();
}

/// Where none answers, the provider says why.
#[test]
fn devices_of_which_none_answers_are_an_error() {
    let rig = Rig::new(Setup { devices: 2, broken: 0, lost: 1, ..Setup::default() });
    let runtime =
        ep_registry::Runtime::builder().linked_with::<CudaProvider>(rig.config(&[])).load().unwrap();
    let entry = &runtime.report().entries[0];
    assert_eq!((runtime.devices().len(), entry.status), (0, ep_registry::Status::Absent), "{entry:?}");
    assert!(
        entry.reason.contains("device 0: cuDeviceTotalMem") && entry.reason.contains("device 1: "),
        "{entry:?}"
    );
}
