// Package conditionrules derives conditions of a manifest from its object, as the
// condition rules of a ManifestWork say: with CEL expressions, or with what is
// known of some kinds.
//
// Rules are written by whoever may write works, and an expression can be made to
// run for hours or to fill the memory. So everything that it does is paid before
// it is done, in units of looking at one value: by each expression, and by all of
// a manifest. There is a price for each function that rules may use, which knows
// the actual arguments, and no environment with a function that has none. What no
// function does is paid at each turn of a loop. What goes over a limit ends the
// evaluation, and is an error in the condition, like any other mistake in an
// expression.
//
// [Evaluator] is pure besides its cache of compiled expressions; it makes its
// CEL environment when the first rule needs one.
package conditionrules
