//! Operators by name, with attributes: made once, run often.

use crate::given::{free, given_text, list, made_handle, needed, object, run, text};
use crate::named::Call;
use crate::session::Session;
use crate::tensor::Tensor;
use ep_core::abi::EpStatus;
use ep_core::{Error, Result};
use ep_ops::Tensor as Strided;
use std::ffi::{CString, c_char};

/// What is run: a name with its attributes.
pub struct Operator {
    name: CString,
    call: Call,
}

/// An operator by its name, with its attributes as a JSON object (null: none given): `"softmax"` with `{"dim": -1}`.
/// `docs/bindings.md` lists the names and attributes; an unknown one is an error that lists those that there are. It can be
/// run any number of times, in any session.
///
/// # Safety
/// `name` is a text, `attributes` null or a text, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_operator_new(
    name: *const c_char,
    attributes: *const c_char,
    out: *mut *mut Operator,
) -> *const EpStatus {
    // SAFETY: as the caller promises.
    unsafe {
        made_handle(out, || {
            let name = needed(name, "name of the operator")?;
            let call = Call::new(name, text(attributes, "attributes")?.unwrap_or("{}"))?;
            Ok(Operator { name: given_text(name), call })
        })
    }
}

/// The name that it was made with.
///
/// # Safety
/// `op` is null, which gives null, or a live handle, with which the text ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_operator_name(op: *const Operator) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { op.as_ref() }.map_or(std::ptr::null(), |o| o.name.as_ptr())
}

/// The tensors of a list of handles.
///
/// # Safety
/// So many handles, each null or live as long as the result is used.
unsafe fn tensors<'a>(inputs: *const *const Tensor, num_inputs: usize) -> Result<Vec<&'a Strided>> {
    // SAFETY: as the caller promises.
    let inputs = unsafe { list(inputs, num_inputs, "inputs") }?;
    let of = |(i, input): (usize, &*const Tensor)| {
        // SAFETY: as the caller promises.
        unsafe { object(*input, format_args!("input {i}")) }.map(|t| &t.tensor)
    };
    inputs.iter().enumerate().map(of).collect()
}

/// Runs an operator on inputs of the session's device. Its outputs, new handles, go to `outputs`, which has room for
/// `capacity`; `num_outputs` is how many there are. Views share the memory of their input. Work is queued: reading waits.
///
/// # Safety
/// `session`, `op` and the `num_inputs` inputs are live handles, `outputs` has room for `capacity` handles,
/// `num_outputs` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_operator_run(
    session: *const Session,
    op: *const Operator,
    inputs: *const *const Tensor,
    num_inputs: usize,
    outputs: *mut *mut Tensor,
    capacity: usize,
    num_outputs: *mut usize,
) -> *const EpStatus {
    run(|| {
        // SAFETY: as the caller promises.
        let (session, operator, inputs) =
            unsafe { (object(session, "session")?, object(op, "operator")?, tensors(inputs, num_inputs)?) };
        if num_outputs.is_null() || (capacity > 0 && outputs.is_null()) {
            return Err(Error::invalid("the place for the outputs, or for their number, is null"));
        }
        let wanted = operator.call.outputs(&inputs)?;
        if wanted > capacity {
            return Err(Error::invalid(format!(
                "{:?} has {wanted} outputs, and there is room for {capacity}",
                operator.name
            )));
        }
        let made = operator.call.run(&session.ops, &inputs)?;
        if made.len() > capacity {
            return Err(Error::internal(format!("{:?} has made {} outputs", operator.name, made.len())));
        }
        // All memory that this needs is there before anything is written.
        let made: Vec<Box<Tensor>> = made.into_iter().map(|tensor| Box::new(Tensor::new(tensor))).collect();
        // SAFETY: room for as many as there are, and for the number.
        unsafe {
            num_outputs.write(made.len());
            for (i, tensor) in made.into_iter().enumerate() {
                outputs.add(i).write(Box::into_raw(tensor));
            }
        }
        Ok(())
    })
}

/// Runs an operator of one output and leaves that in the first input, whose dtype and shape it has. Where inputs share memory,
/// the result is as if they had been copied first.
///
/// # Safety
/// As `ep_operator_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_operator_run_in_place(
    session: *const Session,
    op: *const Operator,
    inputs: *const *const Tensor,
    num_inputs: usize,
) -> *const EpStatus {
    run(|| {
        // SAFETY: as the caller promises.
        let (session, operator, inputs) =
            unsafe { (object(session, "session")?, object(op, "operator")?, tensors(inputs, num_inputs)?) };
        operator.call.run_in_place(&session.ops, &inputs)
    })
}

/// Frees an operator.
///
/// # Safety
/// Null or a handle that nobody uses again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ep_operator_free(op: *mut Operator) {
    // SAFETY: as the caller promises.
    unsafe { free(op) }
}
