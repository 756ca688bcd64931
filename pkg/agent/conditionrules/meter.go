package conditionrules

import (
	"context"
	"fmt"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// CEL counts the cost of a function after the call, and miscounts if a branch is not taken; a function cannot
// be interrupted. Therefore the units are counted here, from the actual arguments, before the work is done. A
// unit is the cost of reading one value: some 50 ns.

// meterName is the variable of the meter of an evaluation. No expression can name it.
const meterName = "@meter"

// lookEvery is the number of units between two checks of the context.
const lookEvery = 1000

// meter counts the units of one evaluation.
type meter struct {
	ctx         context.Context //nolint:containedctx // it is that of the evaluation
	left, limit float64
	look        float64
	patterns    map[string]*pattern
	// err is why the evaluation was stopped.
	err error
}

func newMeter(ctx context.Context, limit uint64) *meter {
	return &meter{ctx: ctx, left: float64(limit), limit: float64(limit), look: lookEvery}
}

// meterOf returns the meter of an evaluation.
func meterOf(frame *interpreter.ExecutionFrame) *meter {
	v, _ := frame.ResolveName(meterName)
	return v.(*meter)
}

// costError is the error of an exceeded limit, with the next step.
type costError struct{ text string }

func (e *costError) Error() string { return e.text }

func (m *meter) tooMuch(what string) error {
	return &costError{fmt.Sprintf("operation cancelled: actual cost limit exceeded: %s, and an expression may take %.0f units: use fewer loops, shorter texts or smaller lists", what, m.limit)}
}

// pay takes units before the work is done. If they do not suffice, or the context has ended, it ends the
// evaluation.
func (m *meter) pay(what string, units float64) {
	if !(units <= m.left) {
		m.left = 0
		m.end(m.tooMuch(what))
	}
	m.left -= units
	if m.look -= units; m.look > 0 {
		return
	}
	m.look = lookEvery
	if m.ctx.Err() != nil {
		m.end(context.Cause(m.ctx))
	}
}

// end ends the evaluation by a panic. CEL does not treat it as a value, as || does with an error, and recovers
// from it.
func (m *meter) end(err error) {
	m.err = err
	panic(interpreter.EvalCancelledError{Message: err.Error(), Cause: interpreter.CostLimitExceeded})
}

// spent returns the units used by the evaluation.
func (m *meter) spent() uint64 { return uint64(m.limit - m.left) }

// call is a function call that is paid before it is executed. It hides that it is a call: otherwise CEL would
// replace a call with a constant regular expression by an unpaid one.
type call struct {
	interpreter.InterpretableV2
	function string
	args     []interpreter.InterpretableV2
	price    price
	invoke   func(*meter, []ref.Val) ref.Val
}

// Exec implements interpreter.InterpretableV2.
func (c *call) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	args := make([]ref.Val, len(c.args))
	for i, a := range c.args {
		if args[i] = a.Exec(frame); types.IsUnknownOrError(args[i]) {
			return args[i]
		}
	}
	var m *meter
	if c.price != nil && !simple(args) {
		m = meterOf(frame)
		m.pay(readable(c.function)+" has too large an input", c.price(m, args))
	}
	return types.LabelErrNode(c.ID(), c.invoke(m, args))
}

// Eval implements interpreter.Interpretable.
func (c *call) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

// paid is a value with a price that is paid after its evaluation.
type paid struct {
	interpreter.InterpretableV2
	price func(m *meter, v ref.Val)
}

// Exec implements interpreter.InterpretableV2.
func (p *paid) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	v := p.InterpretableV2.Exec(frame)
	p.price(meterOf(frame), v)
	return v
}

// Eval implements interpreter.Interpretable.
func (p *paid) Eval(vars interpreter.Activation) ref.Val { return p.Exec(interpreter.AsFrame(vars)) }

// loopStep is the condition of a loop, evaluated before each iteration. It pays the cost of one iteration
// except its calls and inner loops.
type loopStep struct {
	interpreter.InterpretableV2
	units float64
}

// Exec implements interpreter.InterpretableV2.
func (t *loopStep) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	meterOf(frame).pay("its loops have too many iterations", t.units)
	return t.InterpretableV2.Exec(frame)
}

// Eval implements interpreter.Interpretable.
func (t *loopStep) Eval(vars interpreter.Activation) ref.Val {
	return t.Exec(interpreter.AsFrame(vars))
}
