// The program of the pods in the node's own tests. `hello serve ADDRESS` answers every request with a greeting and logs
// it, `hello get URL` prints the answer, and `hello eat MIB` allocates that much memory.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("hello serve ADDRESS | hello get URL | hello eat MIB")
	}
	switch argument := os.Args[2]; os.Args[1] {
	case "serve":
		log.Printf("serving on %s", argument)
		log.Fatal(http.ListenAndServe(argument, http.HandlerFunc(greet)))
	case "get":
		if err := get(argument); err != nil {
			log.Fatal(err)
		}
	case "eat":
		if err := eat(argument); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatalf("unknown command %q", os.Args[1])
	}
}

func greet(answer http.ResponseWriter, request *http.Request) {
	log.Printf("%s %s", request.Method, request.URL.Path)
	fmt.Fprintf(answer, "hello from %s\n", os.Getenv("HOSTNAME"))
}

func get(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func eat(mib string) error {
	count, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	eaten := make([][]byte, count)
	for i := range eaten {
		eaten[i] = bytes.Repeat([]byte{1}, 1<<20)
	}
	fmt.Printf("%d MiB eaten\n", len(eaten))
	return nil
}
