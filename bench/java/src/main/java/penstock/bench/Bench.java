package penstock.bench;

import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Measures a real DefaultMessageStore: a JSON command a line in, a JSON answer a line out; see bench/process.py. */
public class Bench {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // the store's own prints must not mix with answers
        Target target = new Target();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject done = new JSONObject();
            try {
                answer(target, JSONObject.parseObject(line), done);
            } catch (Throwable error) {
                error.printStackTrace();
                done.put("error", error.toString());
            }
            out.write((done.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(Target target, JSONObject command, JSONObject done) throws Exception {
        switch (command.getString("do")) {
            case "open": target.open(command, done); break;
            case "close": target.close(done); break;
            case "follow": target.store.updateHaMasterAddress("127.0.0.1:" + command.getIntValue("port")); break;
            case "put": Puts.singles(target, command, done); break;
            case "put_many": Puts.batches(target, command, done); break;
            case "fill": Puts.fill(target, command, done); break;
            case "queues": Puts.queues(target, command, done); break;
            case "lag": Puts.lag(target, command, done); break;
            case "read": Reads.read(target, command, done); break;
            case "find": Reads.find(target, command, done); break;
            case "offset_at": Reads.offsetAt(target, command, done); break;
            case "total": target.total(done); break;
            case "memory": target.memory(done); break;
            default: throw new IllegalArgumentException(command.toJSONString());
        }
    }
}
