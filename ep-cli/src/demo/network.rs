//! The network on a device: every step is a primitive that the runtime chose.

use super::data::{CLASSES, Data, SIDE};
use ep_core::op::Op;
use ep_core::primitive::{
    BinaryOp, BroadcastElementwiseBinary, BroadcastElementwiseBinaryCall, BroadcastElementwiseBinaryDesc,
    Cast, CastCall, CastDesc, ElementwiseUnary, ElementwiseUnaryCall, ElementwiseUnaryDesc, Matmul,
    MatmulCall, MatmulDesc, Softmax, SoftmaxCall, SoftmaxDesc, Transpose, UnaryOp,
};
use ep_core::{DType, Result, Scalar};
use ep_registry::{Buffer, Device, InPlace, NoMemory, Primitive, Runtime, Stream};
use std::collections::BTreeMap;

/// The largest value of a pixel.
const WHITE: f64 = 16.0;

/// The network, ready to run on one device.
pub struct Network {
    stream: Stream,
    count: i64,
    cast: Primitive<Cast>,
    divide: Primitive<BroadcastElementwiseBinary>,
    matmul: Primitive<Matmul>,
    add: Primitive<BroadcastElementwiseBinary>,
    relu: Primitive<ElementwiseUnary>,
    softmax: Primitive<Softmax>,
    images: Buffer,
    layers: Vec<Layer>,
    /// The input of each layer, then the probabilities; f32.
    values: Vec<Buffer>,
}

struct Layer {
    inputs: i64,
    outputs: i64,
    weight: Buffer,
    bias: Buffer,
}

/// Which factories compute an op: (instance, `instance/factory`).
pub type Chosen = BTreeMap<&'static str, Vec<(String, String)>>;

impl Network {
    /// Chooses the primitives and copies weights and images to the device.
    pub fn new(runtime: &Runtime, device: &Device, data: &Data) -> Result<Network> {
        let f32 = DType::F32;
        let binary = |op| {
            let desc = BroadcastElementwiseBinaryDesc::new(op, f32, f32);
            runtime.primitive::<BroadcastElementwiseBinary>(device, desc)
        };
        let mut values = vec![device.alloc(f32, data.count * SIDE * SIDE)?];
        let mut layers = Vec::new();
        for layer in &data.layers {
            values.push(device.alloc(f32, data.count * layer.outputs)?);
            layers.push(Layer {
                inputs: layer.inputs as i64,
                outputs: layer.outputs as i64,
                weight: device.upload(&layer.weight)?,
                bias: device.upload(&layer.bias)?,
            });
        }
        Ok(Network {
            stream: device.stream()?,
            count: data.count as i64,
            cast: runtime.primitive(device, CastDesc::new(DType::U8, f32))?,
            divide: binary(BinaryOp::DIV)?,
            matmul: runtime.primitive(device, MatmulDesc::new(Transpose::NONE, Transpose::NONE, f32))?,
            add: binary(BinaryOp::ADD)?,
            relu: runtime.primitive(device, ElementwiseUnaryDesc::new(UnaryOp::RELU, f32, f32))?,
            softmax: runtime.primitive(device, SoftmaxDesc::new(f32, f32))?,
            images: device.upload(&data.images)?,
            layers,
            values,
        })
    }

    /// The factory behind each op.
    pub fn chosen(&self) -> Chosen {
        let mut chosen = Chosen::new();
        note(&mut chosen, &self.cast);
        note(&mut chosen, &self.divide);
        note(&mut chosen, &self.matmul);
        note(&mut chosen, &self.add);
        note(&mut chosen, &self.relu);
        note(&mut chosen, &self.softmax);
        chosen
    }

    /// Classifies all images; returns when it is done.
    pub fn run(&mut self) -> Result<()> {
        let n = self.count;
        let pixels = [n, (SIDE * SIDE) as i64];
        let x = &mut self.values[0];
        let call = CastCall { count: pixels[0] * pixels[1], src: &self.images, dst: &mut *x };
        self.cast.launch(&self.stream, call)?;
        let call = BroadcastElementwiseBinaryCall {
            src0_dims: &pixels,
            src1_dims: &[],
            scalar0: Scalar::None,
            scalar1: Scalar::F64(WHITE),
            src0: InPlace,
            src1: NoMemory,
            dst: x,
        };
        self.divide.launch(&self.stream, call)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let (before, after) = self.values.split_at_mut(i + 1);
            let (x, y) = (&before[i], &mut after[0]);
            let call = MatmulCall {
                m: n,
                n: layer.outputs,
                k: layer.inputs,
                alpha: Scalar::None,
                beta: Scalar::None,
                a: x,
                b: &layer.weight,
                c: &mut *y,
            };
            self.matmul.launch(&self.stream, call)?;
            let call = BroadcastElementwiseBinaryCall {
                src0_dims: &[n, layer.outputs],
                src1_dims: &[layer.outputs],
                scalar0: Scalar::None,
                scalar1: Scalar::None,
                src0: InPlace,
                src1: &layer.bias,
                dst: &mut *y,
            };
            self.add.launch(&self.stream, call)?;
            if i + 1 < self.layers.len() {
                let call = ElementwiseUnaryCall { count: n * layer.outputs, src: InPlace, dst: y };
                self.relu.launch(&self.stream, call)?;
            } else {
                let call = SoftmaxCall { rows: n, cols: layer.outputs, inner: 1, src: InPlace, dst: y };
                self.softmax.launch(&self.stream, call)?;
            }
        }
        self.stream.sync()
    }

    /// The probabilities of the last run, \[count, CLASSES\].
    pub fn probabilities(&self) -> Result<Vec<f32>> {
        self.values[self.layers.len()].download()
    }
}

fn note<O: Op>(chosen: &mut Chosen, primitive: &Primitive<O>) {
    let instance = primitive.instance().to_owned();
    let full = format!("{instance}/{}", primitive.factory());
    let list = chosen.entry(O::NAME).or_default();
    if !list.iter().any(|(_, f)| *f == full) {
        list.push((instance, full));
    }
}

/// The class with the highest probability; a NaN counts as the highest, so that it cannot hide.
pub fn best(probabilities: &[f32]) -> usize {
    // `total_cmp` alone puts a NaN with a sign below everything, and that is what x86 makes of `inf - inf`.
    let by_value =
        |(_, a): &(usize, &f32), (_, b): &(usize, &f32)| a.is_nan().cmp(&b.is_nan()).then(a.total_cmp(b));
    probabilities.iter().enumerate().max_by(by_value).map_or(0, |(i, _)| i)
}

/// How many images get the class of their label.
pub fn count_correct(probabilities: &[f32], labels: &[usize]) -> usize {
    probabilities.chunks(CLASSES).zip(labels).filter(|(p, label)| best(p) == **label).count()
}

/// The largest difference between two lists of the same length; infinite when something is not finite.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f64 {
    let differences = a.iter().zip(b).map(|(x, y)| (f64::from(*x) - f64::from(*y)).abs());
    differences.fold(0.0, |max, d| if d.is_nan() { f64::INFINITY } else { f64::max(max, d) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hides_behind_nan() {
        let mut p = [0.0; 2 * CLASSES];
        (p[3], p[CLASSES + 9]) = (0.9, 0.5);
        assert_eq!(count_correct(&p, &[3, 9]), 2);
        assert_eq!(count_correct(&p, &[3, 8]), 1);
        for nan in [f32::NAN, -f32::NAN] {
            p[0] = nan;
            assert_eq!(count_correct(&p, &[3, 9]), 1);
        }
        assert_eq!(max_abs_diff(&[1.0, 2.0], &[1.5, 0.5]), 1.5);
        assert_eq!(max_abs_diff(&[f32::NAN, 0.0], &[f32::NAN, 0.0]), f64::INFINITY);
        assert_eq!(max_abs_diff(&[f32::INFINITY], &[f32::INFINITY]), f64::INFINITY);
    }
}
