//! A graph under construction, with the inputs to run it on.

use half::{bf16, f16};
use tg::{
    check::tensor::{self, Arg, Index, Number, Operand},
    exec::{Tensor, cpu::ScalarPage},
    grad::gradients,
    ir::{DType, Graph, Input, Origins, Output, ScalarSource, Type, ValueId},
    ops::{self, OpError, Scalar},
    syntax::ast::{BinaryOp, UnaryOp},
};

use crate::device::eval;

#[derive(Default)]
pub struct Bench {
    pub graph: Graph,
    inputs: Vec<Tensor>,
    page: ScalarPage,
}

/// A tensor from numbers, rounded to the dtype.
pub fn host(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    fn of<T: tg::exec::Element>(shape: &[usize], values: &[f64], cast: impl Fn(f64) -> T) -> Tensor {
        let values: Vec<T> = values.iter().map(|&v| cast(v)).collect();
        Tensor::from_slice(shape, &values).expect("as many values as the shape has")
    }
    match dtype {
        DType::F32 => of(shape, values, |v| v as f32),
        DType::F64 => of(shape, values, |v| v),
        DType::F16 => of(shape, values, f16::from_f64),
        DType::BF16 => of(shape, values, bf16::from_f64),
        DType::I32 => of(shape, values, |v| v as i32),
        DType::I64 => of(shape, values, |v| v as i64),
        DType::U8 => of(shape, values, |v| v as u8),
        DType::Bool => of(shape, values, |v| v != 0.0),
    }
}

/// Elements as `f64`.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.ty().elements()).filter_map(|i| tensor.get_f64(i)).collect()
}

impl Bench {
    /// An input tensor.
    pub fn input(&mut self, dtype: DType, shape: &[usize], values: &[f64]) -> Operand {
        let tensor = host(dtype, shape, values);
        let index = self.inputs.len() as u32;
        self.graph.inputs.push(Input { name: "x".into(), ty: tensor.ty().clone() });
        self.inputs.push(tensor);
        Operand::tensor(self.graph.value(ops::Input { index }, &[]).expect("an input"))
    }

    /// An f64 input whose elements are 0, 1, 2, …
    pub fn count(&mut self, shape: &[usize]) -> Operand {
        let values: Vec<f64> = (0..shape.iter().product::<usize>()).map(|i| i as f64).collect();
        self.input(DType::F64, shape, &values)
    }

    /// A value for its type only: nothing runs it.
    pub fn typed(&mut self, dtype: DType, shape: &[usize]) -> Operand {
        let index = self.graph.inputs.len() as u32;
        self.graph.inputs.push(Input { name: "x".into(), ty: Type::new(dtype, shape).expect("a type") });
        Operand::tensor(self.graph.value(ops::Input { index }, &[]).expect("an input"))
    }

    /// A run-time scalar, which is weak.
    pub fn weak(&mut self, value: f64) -> Operand {
        let index = self.page.values.len() as u32;
        self.graph.scalars.push(ScalarSource::Hyper { name: "lr".into(), value });
        self.page.values.push(value);
        let scalar = Scalar { index, dtype: DType::F64 };
        Operand::Tensor { value: self.graph.value(scalar, &[]).expect("a scalar"), weak: true }
    }

    pub fn binary(&mut self, op: BinaryOp, a: Operand, b: Operand) -> Result<Operand, OpError> {
        tensor::binary(&mut self.graph, op, a, b)
    }

    pub fn unary(&mut self, op: UnaryOp, x: Operand) -> Result<Operand, OpError> {
        tensor::unary(&mut self.graph, op, x)
    }

    pub fn index(&mut self, x: Operand, items: &[Index]) -> Result<Operand, OpError> {
        tensor::index(&mut self.graph, x, items)
    }

    /// Calls a built-in function; parameters that are not named get their defaults.
    pub fn all(&mut self, name: &str, args: &[(&str, Arg)]) -> Result<Vec<Operand>, OpError> {
        let function = tensor::find(name).unwrap_or_else(|| panic!("no function `{name}`"));
        for (given, _) in args {
            assert!(function.params.iter().any(|p| p.name == *given), "`{name}` has no parameter `{given}`");
        }
        let key = function.random.then_some(Arg::Key { key: 7, per_step: true });
        let bound = function.params.iter().map(|param| {
            let given = args.iter().find(|(name, _)| *name == param.name).map(|(_, arg)| arg.clone());
            given.unwrap_or_else(|| {
                param.default.unwrap_or_else(|| panic!("`{name}` needs `{}`", param.name)).arg(param.kind)
            })
        });
        let bound: Vec<Arg> = key.into_iter().chain(bound).collect();
        (function.call)(&mut self.graph, &bound)
    }

    pub fn call(&mut self, name: &str, args: &[(&str, Arg)]) -> Result<Operand, OpError> {
        let results = self.all(name, args)?;
        assert_eq!(results.len(), 1, "`{name}` gives one value");
        Ok(results[0])
    }

    /// A function of `x` alone.
    pub fn of(&mut self, name: &str, x: Operand) -> Result<Operand, OpError> {
        self.call(name, &[("x", Arg::Operand(x))])
    }

    /// The value of an operand.
    pub fn run(&mut self, operand: Operand) -> Tensor {
        let Operand::Tensor { value, .. } = operand else { panic!("{operand:?} is not a tensor") };
        self.run_value(value)
    }

    fn run_value(&mut self, value: ValueId) -> Tensor {
        self.graph.outputs = vec![Output { name: "y".into(), value, origin: Origins::NOWHERE }];
        let results = eval(&self.graph, &mut [], &self.inputs, &self.page).expect("it runs");
        results.into_iter().next().expect("one output")
    }

    /// The gradient of the sum of `y` with regard to `x`.
    pub fn gradient(&mut self, y: Operand, x: Operand) -> Option<Tensor> {
        let (Operand::Tensor { value: y, .. }, Operand::Tensor { value: x, .. }) = (y, x) else {
            panic!("numbers have no gradient")
        };
        let one = self.graph.splat_like(y, 1.0).expect("ones");
        let grads = gradients(&mut self.graph, &[(y, one)], &[x]).expect("it has a gradient");
        grads[0].map(|g| self.run_value(g))
    }

    /// As a message would: the type, and whether it is weak.
    pub fn ty(&self, operand: Operand) -> String {
        match operand {
            Operand::Tensor { value, weak } => {
                format!("{}{}", if weak { "weak " } else { "" }, self.graph.ty(value))
            }
            Operand::Number(number) => format!("{number}"),
        }
    }
}

/// The message of an error, with its help in a second line.
pub fn message<T: std::fmt::Debug>(result: Result<T, OpError>) -> String {
    let error = result.expect_err("it is an error");
    match error.help {
        Some(help) => format!("{}\nhelp: {help}", error.message),
        None => error.message,
    }
}

pub fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{found:?} and {expected:?}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs());
        assert!(same, "element {i}: {a} and {b}, in {found:?} and {expected:?}");
    }
}

pub fn op(x: Operand) -> Arg {
    Arg::Operand(x)
}

pub fn int(value: i64) -> Operand {
    Operand::Number(Number::Int(value))
}

pub fn float(value: f64) -> Operand {
    Operand::Number(Number::Float(value))
}
