package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
)

// repository is the root directory of all searched texts.
const repository = "../.."

// kubectlVerbs are the verbs of kubectl that advice may contain, each with its subcommands.
var kubectlVerbs = map[string][]string{
	"annotate": nil, "apply": nil, "config": {"get-contexts", "use-context"}, "create": nil, "debug": nil, "delete": nil, "describe": nil, "drain": nil, "edit": nil,
	"events": nil, "exec": nil, "explain": nil, "get": nil, "kustomize": nil, "label": nil, "logs": nil, "patch": nil, "port-forward": nil, "replace": nil,
	"rollout": {"restart", "status", "undo"}, "scale": nil, "taint": nil, "top": nil, "wait": nil,
}

// longFlags are flags of kubectl by their short names.
var longFlags = map[string]string{"-A": "--all-namespaces", "-f": "--filename", "-k": "--kustomize", "-l": "--selector", "-n": "--namespace", "-o": "--output", "-p": "--patch"}

// valued are the flags of kubectl whose value may be the next word.
var valued = map[string]bool{
	"--context": true, "--field-selector": true, "--filename": true, "--for": true, "--kubeconfig": true, "--kustomize": true,
	"--namespace": true, "--output": true, "--patch": true, "--selector": true, "--subresource": true, "--timeout": true, "--type": true,
}

// kinds are other names of kinds.
var kinds = map[string]string{"csr": "certificatesigningrequests", "deploy": "deployments", "deployment": "deployments"}

// kubectlStep is a command of kubectl without the name of its object.
type kubectlStep struct {
	words []string // verbs, kind, and the command that runs in a container
	flags []string // by their long names, without those of the connection
}

func (s kubectlStep) String() string {
	return strings.Join(slices.Concat([]string{"kubectl"}, s.words, s.flags), " ")
}

// does reports whether executing s also executes other.
func (s kubectlStep) does(other kubectlStep) bool {
	for _, f := range other.flags {
		if !slices.Contains(s.flags, f) {
			return false
		}
	}
	n := min(len(s.words), len(other.words)) // a step without a kind matches any kind
	return n == len(other.words) && slices.EqualFunc(s.words[:n], other.words, func(a, b string) bool {
		return a == b || strings.HasPrefix(b, "/%") && strings.HasPrefix(a, "/") // %s stands for the name of a program
	})
}

// template matches a placeholder of a chart.
var template = regexp.MustCompile(`{{[^}]*}}`)

// kubectlSteps returns the commands of kubectl in a text.
func kubectlSteps(text string) (steps []kubectlStep) {
	text = template.ReplaceAllString(strings.ReplaceAll(text, "\\\n", " "), "X")
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		for i, w := range words {
			if strings.HasSuffix(strings.TrimLeft(w, "(`\"$"), "kubectl") {
				if s, is := kubectlStepOf(words[i+1:]); is {
					steps = append(steps, s)
				}
			}
		}
	}
	return steps
}

// kubectlStepOf reads the words behind kubectl, up to what belongs to no command; false if they are none.
func kubectlStepOf(words []string) (s kubectlStep, is bool) {
	var names []string
	for i := 0; i < len(words); i++ {
		w := words[i]
		if w == "|" || strings.ContainsAny(w[:1], "#>(=") {
			break
		}
		if w == "--" {
			s.words = words[i:]
			break
		}
		name := strings.TrimRight(w, "`,.:;)")
		if flag, _, inOne := strings.Cut(name, "="); strings.HasPrefix(flag, "-") {
			if long := longFlags[flag]; long != "" {
				flag = long
			}
			if flag != "--context" && flag != "--kubeconfig" {
				s.flags = append(s.flags, flag)
			}
			if valued[flag] && !inOne {
				i++
				name = strings.TrimRight(words[min(i, len(words)-1)], "`,.:;)")
				w = words[min(i, len(words)-1)]
			}
		} else {
			names = append(names, name)
		}
		if name != w {
			break // the command is over
		}
	}
	if len(names) == 0 {
		return s, false
	}
	below, is := kubectlVerbs[names[0]]
	if n := 1; is {
		if len(below) > 0 {
			if n = 2; len(names) < n || !slices.Contains(below, names[1]) {
				return s, false
			}
		}
		verbs := names[:n:n]
		if len(names) > n && verbs[0] != "explain" && verbs[0] != "logs" && verbs[0] != "debug" {
			verbs = append(verbs, kindOf(names[n]))
		}
		s.words = append(verbs, s.words...)
	}
	slices.Sort(s.flags)
	s.flags = slices.Compact(s.flags)
	return s, is
}

func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "/")
	kind, _, _ = strings.Cut(kind, ".")
	if k := kinds[kind]; k != "" {
		return k
	}
	if strings.HasSuffix(kind, "s") {
		return kind
	}
	return kind + "s"
}

// executors are the tests that execute commands of kubectl, as they are typed.
var executors = []string{
	"test/e2e/install TestAdvice_OfKubectl",
	"test/e2e/install TestInstall_ThreeCommandsToAFirstWork",
	"test/e2e/troubleshooting TestDay",
}

// TestAdvice_OfKubectlIsExecuted: each kubectl command that a message, an alert, a note of a chart or a page
// advises is executed, with its flags. A tested block or screen of a page executes it, or a named test.
func TestAdvice_OfKubectlIsExecuted(t *testing.T) {
	var executed []kubectlStep
	for _, test := range executors {
		before := len(executed)
		for _, text := range textsOf(t, test) {
			executed = append(executed, kubectlSteps(text)...)
		}
		if len(executed) == before {
			t.Errorf("%s executes no command of kubectl, or is not there", test)
		}
	}
	requested, run := onPages(t)
	for text := range run {
		executed = append(executed, kubectlSteps(text)...)
	}
	maps.Copy(requested, advices(t))
	found := 0
	for text, file := range requested {
		for _, step := range kubectlSteps(text) {
			found++
			if !slices.ContainsFunc(executed, func(e kubectlStep) bool { return e.does(step) }) {
				t.Errorf("%s: %q is advised, and none of the tests executes it: add it to %s", file, step, executors[0])
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d commands were found", found)
	}
}

// TestKubectlSteps: what of a text is a command.
func TestKubectlSteps(t *testing.T) {
	for text, want := range map[string]string{
		"see: kubectl -n hawser get pods on the hub":                         "kubectl get pods --namespace",
		"with kubectl create serviceaccount, or leave --service-account out": "kubectl create serviceaccounts",
		"`kubectl get csr -l a=b`: a request":                                "kubectl get certificatesigningrequests --selector",
		"(kubectl get csr)":                                                  "kubectl get certificatesigningrequests",
		"kubectl -n x exec deploy/a -- /b doctor":                            "kubectl exec deployments -- /b doctor --namespace",
		"kubectl apply \\\n  --server-side -k deploy/broker # on the hub":    "kubectl apply --kustomize --server-side",
		"prints a List, as kubectl does":                                     "",
		"kubectl config get-contexts":                                        "kubectl config get-contexts",
		"kubectl get works -A -o json | jq -r x":                             "kubectl get works --all-namespaces --output",
	} {
		got := ""
		for _, s := range kubectlSteps(text) {
			got += s.String()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

var code = regexp.MustCompile("`([^`]+)`")

// onPages returns the commands on pages, with the file of each. requested are those that are only shown, in
// inline code and unmarked blocks. run are those that tests run: marked blocks, and compared screens.
func onPages(t *testing.T) (requested, run map[string]string) {
	t.Helper()
	requested, run = map[string]string{}, map[string]string{}
	blocks, err := shellblocks.Find(repository)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, pattern := range []string{"README.md", "SECURITY.md", "deploy/*.md", "docs/*.md", "docs/operations/*.md", "docs/protocol/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, b := range blocks {
		switch {
		case b.Kind != shellblocks.Shown:
			run[b.Text] = b.File
		case slices.Contains(files, filepath.Join(repository, b.File)):
			requested[b.Text] = b.File
		}
	}
	for _, file := range files {
		page, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		compared, fenced := false, false
		for line := range strings.Lines(string(page)) {
			line = strings.TrimSpace(line)
			command, typed := strings.CutPrefix(line, "$ ")
			switch {
			case strings.HasPrefix(line, "<!-- screen: "):
				compared = true
			case line == "<!-- end -->":
				compared = false
			case strings.HasPrefix(line, "```"):
				fenced = !fenced
			case typed && compared:
				run[command] = file
			case typed && fenced:
				requested[command] = file
			case !fenced:
				for _, m := range code.FindAllStringSubmatch(line, -1) {
					requested[m[1]] = file
				}
			}
		}
	}
	return requested, run
}

// executes reports whether a test has a text with all words of a command.
func executes(t *testing.T, test, command string) bool {
	t.Helper()
	return slices.ContainsFunc(textsOf(t, test), func(text string) bool {
		words := strings.Fields(text)
		return !slices.ContainsFunc(strings.Fields(command)[1:], func(w string) bool { return !slices.Contains(words, w) })
	})
}

// textsOf returns the texts in a test, and in what it uses of its package: each string, and the joined strings
// of each call. It returns none if there is no such test. A test is a directory and a name.
func textsOf(t *testing.T, test string) (texts []string) {
	t.Helper()
	dir, name, _ := strings.Cut(test, " ")
	files, err := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string][]ast.Node{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				declared[d.Name.Name] = append(declared[d.Name.Name], d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, is := s.(*ast.ValueSpec); is {
						for _, n := range v.Names {
							declared[n.Name] = append(declared[n.Name], v)
						}
					}
				}
			}
		}
	}
	names, reached := []string{name}, map[string]bool{}
	for len(names) > 0 {
		name, names = names[0], names[1:]
		if reached[name] {
			continue
		}
		reached[name] = true
		for _, d := range declared[name] {
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					names = append(names, n.Name)
				case *ast.CallExpr:
					call := ""
					for _, a := range n.Args {
						call += textOf(a) + " "
					}
					texts = append(texts, call)
				case ast.Expr:
					texts = append(texts, textOf(n))
				}
				return true
			})
		}
	}
	return texts
}

// textOf is a string as it stands in a program; what is not known of it is an X.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
			return text
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return textOf(e.X) + textOf(e.Y)
		}
	}
	return "X"
}
