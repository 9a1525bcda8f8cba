// What the pods of the node's own tests run: `hello serve ADDRESS` answers every request with a greeting and logs it,
// `hello get URL` prints the answer.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("hello serve ADDRESS | hello get URL")
	}
	switch argument := os.Args[2]; os.Args[1] {
	case "serve":
		log.Printf("serving on %s", argument)
		log.Fatal(http.ListenAndServe(argument, http.HandlerFunc(greet)))
	case "get":
		if err := get(argument); err != nil {
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
