// How GitOps tools judge an object, by their own code: `gitops-health HEALTH.lua` reads objects as JSON from its input,
// one per line, and prints for each what kstatus (Flux, helm, kapp) makes of it, and what Argo CD makes of it with the
// script, as `InProgress Progressing MESSAGE`.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("gitops-health HEALTH.lua")
	}
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			log.Fatal(err)
		}
		found, err := status.Compute(&object)
		if err != nil {
			log.Fatal(err)
		}
		health, message := argo(string(script), object.Object)
		fmt.Println(found.Status, health, message)
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

// argo runs the script as Argo CD does: the global `obj` in, a table with status and message out, and only Lua's safe
// libraries.
func argo(script string, object map[string]any) (string, string) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		state.Push(state.NewFunction(open))
		state.Call(0, 0)
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		log.Fatal(err)
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		log.Fatalf("the script returned %s, not a table", state.Get(-1).Type())
	}
	return answer.RawGetString("status").String(), answer.RawGetString("message").String()
}

func value(state *lua.LState, from any) lua.LValue {
	switch from := from.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, each := range from {
			table.RawSetString(key, value(state, each))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, each := range from {
			table.Append(value(state, each))
		}
		return table
	case string:
		return lua.LString(from)
	case int64:
		return lua.LNumber(from)
	case float64:
		return lua.LNumber(from)
	case bool:
		return lua.LBool(from)
	}
	return lua.LNil
}
