//! Simulated accelerators, which compute by the references, beside each other.

use super::*;
use ep_core::Code;
use ep_core::provider::{Host, Options, Provider, Registrar};
use ep_registry::config::ProviderConfig;
use ep_sim::{Call, DeviceMemory, Hooks, SimDevice, SimProvider, Write};

/// Elements at most: references are slow.
const FEW: i64 = 512;
/// The devices of [`runtime`].
const EQUAL: [&str; 2] = ["sim:0", "sim:1"];
const FAILING: [&str; 2] = ["sim:2", "sim:3"];
const REFUSING: &str = "sim:4";
const BESIDE_WRONG: [&str; 2] = ["sim:0", "sim:5"];

fn config(name: &str, options: &[(&str, &str)]) -> ProviderConfig {
    let mut config = ProviderConfig::new(name, "");
    config.required = true;
    let fast = [("max_delay_us", "0"), ("memory_bytes", "16777216")];
    let all = fast.iter().chain(options);
    config.options = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    config
}

/// Two devices that do the same, two whose launches fail, one that refuses every launch, and one that is wrong as it is
/// told to.
fn runtime(wrong: &str) -> Runtime {
    Runtime::builder()
        .linked_with::<SimProvider>(config("equal", &[("devices", "2")]))
        .linked_with::<SimProvider>(config("failing", &[("devices", "2"), ("op_error", "1..")]))
        .linked_with::<SimProvider>(config("refusing", &[("devices", "1"), ("launch_failure", "1..")]))
        .linked_with::<Wrong>(config("wrong", &[("devices", "1"), ("wrong", wrong)]))
        .build()
        .unwrap()
}

/// Launches so many times on two devices.
fn checked(runtime: &Runtime, [a, b]: [&str; 2], ops: &[&str], times: u64) -> Checked {
    let ops: Vec<String> = ops.iter().map(|op| (*op).to_owned()).collect();
    let asked = Asked { seed: 7, ops: &ops, most: FEW };
    let devices = [runtime.device(a).unwrap(), runtime.device(b).unwrap()];
    check(runtime, devices, &asked, |checked| checked.all() < times).unwrap()
}

/// The simulated accelerator, but for what one launch of a kind leaves.
struct Wrong(SimProvider);

// SAFETY: as the simulated accelerator, whose writes are errors outside of its memory.
unsafe impl Provider for Wrong {
    type Device = SimDevice;
    const NAME: &'static str = "wrong";
    const VERSION: &'static str = "1";
    const VENDOR: &'static str = "tests";

    fn create(_: Host, options: &Options) -> Result<Wrong> {
        let how = options.get("wrong").unwrap_or_default().to_owned();
        SimProvider::new(options, Some(Box::new(How(how)))).map(Wrong)
    }

    fn device_count(&self) -> Result<u32> {
        self.0.device_count()
    }

    fn open_device(&self, index: u32) -> Result<SimDevice> {
        self.0.open_device(index)
    }

    fn register(&self, registrar: &mut Registrar<'_, Self>) -> Result<()> {
        ep_sim::register(registrar)
    }
}

struct How(String);

impl Hooks for How {
    fn compute(&self, call: &mut Call, _: &DeviceMemory<'_>) -> Result<Vec<Write>> {
        let mut writes = call.reference()?;
        let Some(last) = writes.last_mut() else { return Ok(writes) };
        let (operand, end) = (last.operand, call.operands[last.operand].size as i64);
        match &*self.0 {
            "inside" => last.bytes[0] ^= 0x40,
            "behind" => writes.push(Write { operand, at: end, bytes: vec![0x5a; 3] }),
            _ => {}
        }
        Ok(writes)
    }
}

#[test]
fn equal_devices_do_not_differ_and_launches_of_every_op_are_no_nonsense() {
    let runtime = runtime("");
    for (op, _) in OPS {
        let checked = checked(&runtime, EQUAL, &[op], 12);
        assert_eq!((checked.failed, checked.all()), (0, 12), "{op}: {:?}", checked.messages);
        assert!(checked.refused < 6, "{op}: {} of 12 are refused", checked.refused);
        assert_eq!(judge(&checked), Ok(()));
    }
}

#[test]
fn what_differs_inside_and_what_is_written_behind_is_found() {
    for (how, words) in [("inside", "the first is ["), ("behind", "sim:5 writes outside of `dst`")] {
        let checked = checked(&runtime(how), BESIDE_WRONG, &["permute"], 6);
        assert!(checked.failed >= 4 && checked.failed + checked.refused <= 6, "{checked:?}");
        let first = &checked.messages[0];
        assert!(first.contains(words) && first.contains(": permute data="), "{first}");
        assert!(first.starts_with("turn ") && first.contains(" permutation=["), "{first}");
        let error = judge(&checked).unwrap_err();
        assert!(error.message().contains(&format!("after {} of 6 launches", checked.failed)), "{error}");
    }
}

#[test]
fn a_turn_is_the_same_whatever_else_is_asked_for() {
    let runtime = runtime("inside");
    let alone = checked(&runtime, BESIDE_WRONG, &["permute"], 1);
    let turn: u64 = alone.messages[0].split([' ', ':']).nth(1).unwrap().parse().unwrap();
    let beside = checked(&runtime, BESIDE_WRONG, &["cast", "permute"], turn + 1);
    assert!(beside.messages.contains(&alone.messages[0]), "{alone:?} {beside:?}");
}

#[test]
fn what_both_refuse_is_counted_and_what_one_refuses_is_told() {
    let runtime = runtime("");
    let both = checked(&runtime, FAILING, &["add"], 4);
    assert_eq!((both.failed, both.refused), (0, 4), "{both:?}");
    let error = judge(&both).unwrap_err();
    assert_eq!(error.message(), "nothing was compared: of 4 launches 4 were refused");
    for (devices, words) in [
        ([EQUAL[0], REFUSING], "only sim:4 refuses it, "),
        ([REFUSING, EQUAL[0]], "only sim:4 refuses it, "),
        ([FAILING[0], REFUSING], "sim:2 refuses it, "),
    ] {
        let one = checked(&runtime, devices, &["add"], 100);
        assert_eq!((one.failed, one.all(), one.messages.len()), (ENOUGH, ENOUGH, KEPT));
        assert!(one.messages[0].contains(words), "{:?}", one.messages);
    }
}

#[test]
fn what_means_nothing_is_refused() {
    let runtime = runtime("");
    let asked = |devices: [&str; 2], ops: &[String]| {
        let devices = devices.map(|name| runtime.device(name).unwrap());
        check(&runtime, devices, &Asked { seed: 0, ops, most: FEW }, |_| false).unwrap_err()
    };
    let unknown = asked(EQUAL, &["softmin".to_owned()]);
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(
        unknown
            .message()
            .starts_with("no random launches of `softmin`; there are those of add, arg_reduce, ")
    );
    let same = asked(["sim:0", "sim:0"], &[]);
    assert_eq!(
        (same.code(), same.message()),
        (Code::InvalidArgument, "sim:0 cannot be compared with itself")
    );
}
