package penstock;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.BindException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Drives a real name server, a real broker and the Java client, all in this JVM: one JSON command a line in, one
 * JSON answer a line out. All of them live from "start" to "stop", so that nothing goes from one broker to the next.
 */
public class BrokerDriver {
    private static final String NAME = "broker-a";
    private static final int SETTLE_MS = 30_000;
    private static final int CONSUME_MS = 100_000;
    private static final Set<String> SLEEPING = Set.of("DefaultMessageStore", "PopBufferMergeService", "PopReviveService");
    private static NamesrvController nameServer;
    private static String names; // the name server's address
    private static BrokerController broker;
    private static DefaultMQProducer producer;
    private static TransactionMQProducer transactions;
    private static DefaultMQPullConsumer puller;
    private static DefaultMQAdminExt admin;
    private static int clients;

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // the broker's own prints must not mix with answers
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer;
            try {
                answer = answer(JSONObject.parseObject(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = new JSONObject();
                answer.put("error", error.toString());
            }
            out.write((answer.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static JSONObject answer(JSONObject command) throws Exception {
        JSONObject done = new JSONObject();
        switch (command.getString("do")) {
            case "start": start(command, done); break;
            case "create": create(command); break;
            case "delete":
                settle();
                admin.deleteTopicInBroker(Collections.singleton(broker.getBrokerAddr()), command.getString("topic"));
                admin.deleteTopicInNameServer(Collections.singleton(names), "cluster-a", command.getString("topic"));
                break;
            case "send": done.put("results", send(command)); settle(); break;
            case "batch": batch(command, done); settle(); break;
            case "transaction": done.put("result", transaction(command)); settle(); break;
            case "bounds": settle(); bounds(command, done); break;
            case "pull": settle(); done.put("messages", pull(command)); break;
            case "consume": done.put("deliveries", consume(command)); break;
            case "save": save(); break;
            case "register": register(); break;
            case "sync": broker.getSlaveSynchronize().syncAll(); break; // by itself, a slave of 5.x does so every 60 s
            case "end": settle(); done.put("end", broker.getMessageStore().getMaxPhyOffset()); break;
            case "check": check(); break;
            case "query": settle(); done.put("messages", query(command)); break;
            case "stop": stop(); break;
            default: throw new IllegalArgumentException(command.toJSONString());
        }
        return done;
    }

    /** Waits until queues and index have all that the log has: a broker answers a send before that. */
    private static void settle() throws Exception {
        await(() -> broker.getMessageStore().dispatchBehindBytes() <= 0, SETTLE_MS,
            () -> "dispatch is still " + broker.getMessageStore().dispatchBehindBytes() + " bytes behind");
    }

    private static void startNames() throws Exception {
        NettyServerConfig netty = new NettyServerConfig();
        try (Port port = new Port()) {
            netty.setListenPort(port.number);
            nameServer = new NamesrvController(new NamesrvConfig(), netty);
            if (!nameServer.initialize()) {
                throw new IllegalStateException("the name server does not initialize");
            }
            nameServer.start();
        }
        names = "127.0.0.1:" + netty.getListenPort();
    }

    /**
     * A port that nobody else can get, and the one below by two, which a broker takes beside it. Both are bound, so that the
     * system gives them to no one, until the server listens there itself: it may, as these sockets do not listen.
     */
    private static class Port implements AutoCloseable {
        private final List<Socket> held = new ArrayList<>();
        final int number;

        Port() throws IOException {
            int found = 0;
            for (boolean isWhole = false; !isWhole; ) {
                found = hold(0);
                try {
                    hold(found - 2);
                    isWhole = true;
                } catch (BindException taken) {
                    isWhole = false; // the next one, while this one is still held
                }
            }
            number = found;
        }

        private int hold(int wanted) throws IOException {
            Socket socket = new Socket();
            held.add(socket);
            socket.setReuseAddress(false); // it shares a port with no one who was there before
            socket.bind(new InetSocketAddress(wanted));
            socket.setReuseAddress(true); // and lets the server in
            return socket.getLocalPort();
        }

        @Override
        public void close() throws IOException {
            for (Socket socket : held) {
                socket.close();
            }
        }
    }

    private static void start(JSONObject command, JSONObject done) throws Exception {
        if (broker != null) {
            throw new IllegalStateException("this JVM has a broker running already");
        }
        startNames();
        BrokerConfig config = new BrokerConfig();
        MessageStoreConfig store = new MessageStoreConfig();
        NettyServerConfig netty = new NettyServerConfig();
        String root = command.getString("root");
        store.setStorePathRootDir(root);
        store.setStorePathCommitLog(root + "/commitlog");
        config.setRocketmqHome(System.getProperty("rocketmq.home.dir"));
        config.setNamesrvAddr(names);
        config.setBrokerName(NAME);
        config.setBrokerClusterName("cluster-a");
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        store.setHaListenPort(0); // it binds what is free, and no test asks which
        for (Map.Entry<String, Object> setting : command.getJSONObject("config").entrySet()) {
            set(setting.getKey(), setting.getValue().toString(), config, store, netty);
        }
        try (Port port = new Port()) {
            netty.setListenPort(port.number);
            BrokerController made = controller(config, netty, new NettyClientConfig(), store);
            boolean good = made.initialize();
            done.put("started", good);
            if (!good) {
                made.shutdown();
                return;
            }
            made.start();
            broker = made;
        }
        done.put("names", names);
        done.put("listen", broker.getBrokerAddr());
        if (config.getBrokerId() == 0) { // a slave takes no messages, and its master may not be there yet
            done.put("ha", "127.0.0.1:" + haPort());
            startClients();
        }
    }

    /** Only 5.x tells which port the system has chosen. */
    private static int haPort() throws Exception {
        Object accepting = part(part(broker.getMessageStore(), "haService"), "acceptSocketService");
        return ((ServerSocketChannel) part(accepting, "serverSocketChannel")).socket().getLocalPort();
    }

    /** Tells the name server of a slave, which learns from the answer where the master is, and looks for it at once. */
    private static void register() throws Exception {
        broker.registerBrokerAll(true, false, true);
        ((ServiceThread) part(part(broker.getMessageStore(), "haService"), "haClient")).wakeup();
    }

    private static Object part(Object whole, String name) throws Exception {
        for (Class<?> kind = whole.getClass(); ; kind = kind.getSuperclass()) {
            try {
                Field field = kind.getDeclaredField(name);
                field.setAccessible(true);
                return field.get(whole);
            } catch (NoSuchFieldException above) {
                if (kind.getSuperclass() == null) {
                    throw above;
                }
            }
        }
    }

    private static BrokerController controller(Object... given) throws Exception {
        for (Constructor<?> constructor : BrokerController.class.getConstructors()) {
            if (constructor.getParameterCount() == 4) {
                BrokerController made = (BrokerController) constructor.newInstance(given);
                try { // 5.x reads authentication settings at start and fails without
                    Object auth = Class.forName("org.apache.rocketmq.auth.config.AuthConfig").getConstructor().newInstance();
                    Constructor<?> more = BrokerController.class.getConstructor(BrokerConfig.class, NettyServerConfig.class,
                        NettyClientConfig.class, MessageStoreConfig.class, auth.getClass());
                    List<Object> parts = new ArrayList<>(List.of(given));
                    parts.add(auth);
                    made = (BrokerController) more.newInstance(parts.toArray());
                } catch (ClassNotFoundException older) {
                    return made;
                }
                return made;
            }
        }
        throw new IllegalStateException("no constructor of BrokerController is known");
    }

    private static void set(String name, String value, Object... configs) throws Exception {
        String wanted = "set" + name.substring(0, 1).toUpperCase() + name.substring(1);
        boolean known = false;
        for (Object config : configs) {
            for (Method method : config.getClass().getMethods()) {
                if (method.getName().equals(wanted) && method.getParameterCount() == 1) {
                    Class<?> kind = method.getParameterTypes()[0];
                    Object typed = kind == int.class ? (Object) Integer.parseInt(value)
                        : kind == long.class ? (Object) Long.parseLong(value)
                        : kind == boolean.class ? (Object) Boolean.parseBoolean(value)
                        : kind == String.class ? value : null;
                    if (typed != null) {
                        method.invoke(config, typed);
                        known = true;
                        break;
                    }
                }
            }
        }
        if (!known) {
            throw new IllegalArgumentException("no setting " + name);
        }
    }

    private static <T extends ClientConfig> T client(T client) {
        client.setNamesrvAddr(names);
        client.setInstanceName("client-" + ++clients);
        client.setPollNameServerInterval(300);
        client.setHeartbeatBrokerInterval(1000);
        client.setVipChannelEnabled(false);
        return client;
    }

    private static void startClients() throws Exception {
        producer = client(new DefaultMQProducer("producers"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        transactions = client(new TransactionMQProducer("transactions"));
        transactions.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String wanted = message.getProperty("ON_CHECK"); // how a test says what a check is answered
                return LocalTransactionState.valueOf(wanted == null ? "UNKNOW" : wanted);
            }
        });
        transactions.start();
        puller = client(new DefaultMQPullConsumer("pullers"));
        puller.start();
        admin = client(new DefaultMQAdminExt());
        admin.start();
        long end = System.nanoTime() + SETTLE_MS * 1_000_000L;
        while (true) { // until the broker is registered, and the puller knows its address
            try {
                puller.fetchSubscribeMessageQueues(NAME);
                return;
            } catch (Exception early) {
                if (System.nanoTime() > end) {
                    throw early;
                }
                broker.registerBrokerAll(true, false, true); // its own next attempt would come after 10 s
                Thread.sleep(50);
            }
        }
    }

    /**
     * Shuts clients and broker down at once: each waits for seconds for a thread of its remoting client that sleeps.
     * Those threads hold nothing; they are woken, and so are the others that sleep before they end, for requests that do not
     * come here: 5.x in its services for messages that are popped, and this thread in the store.
     */
    private static void stop() throws Exception {
        Thread waking = new Thread(() -> {
            try {
                while (true) {
                    Thread.getAllStackTraces().forEach((thread, at) -> {
                        if (thread.getName().startsWith("NettyEventExecutor") || isAsleepAtItsEnd(at)) {
                            thread.interrupt();
                        }
                    });
                    Thread.sleep(20);
                }
            } catch (InterruptedException done) {
                return;
            }
        });
        waking.start();
        BrokerController running = broker;
        broker = null;
        List<Thread> parts = new ArrayList<>();
        if (running.getBrokerConfig().getBrokerId() == 0) {
            for (Runnable part : List.<Runnable>of(producer::shutdown, transactions::shutdown, puller::shutdown, admin::shutdown)) {
                parts.add(new Thread(part));
            }
        }
        parts.forEach(Thread::start);
        running.shutdown();
        for (Thread part : parts) {
            part.join();
        }
        nameServer.shutdown();
        waking.interrupt();
        waking.join();
        Thread.interrupted();
    }

    private static boolean isAsleepAtItsEnd(StackTraceElement[] at) {
        for (int i = 0; i + 1 < at.length; i++) {
            String in = at[i + 1].getClassName();
            if (at[i].getMethodName().equals("sleep") && SLEEPING.contains(in.substring(in.lastIndexOf('.') + 1))) {
                return true;
            }
        }
        return false;
    }

    private static void create(JSONObject command) throws Exception {
        int queues = command.getIntValue("queues");
        TopicConfig topic = new TopicConfig(command.getString("topic"));
        topic.setReadQueueNums(queues);
        topic.setWriteQueueNums(queues);
        topic.setPerm(6);
        JSONObject attributes = command.getJSONObject("attributes");
        if (attributes != null && !attributes.isEmpty()) {
            Map<String, String> changes = new HashMap<>();
            for (String name : attributes.keySet()) {
                changes.put("+" + name, attributes.getString(name));
            }
            TopicConfig.class.getMethod("setAttributes", Map.class).invoke(topic, changes);
        }
        admin.createAndUpdateTopicConfig(broker.getBrokerAddr(), topic);
        long end = System.nanoTime() + SETTLE_MS * 1_000_000L;
        while (true) { // until the name server gives a route
            try {
                if (puller.fetchSubscribeMessageQueues(topic.getTopicName()).size() >= queues) {
                    return;
                }
            } catch (Exception early) {
                if (System.nanoTime() > end) {
                    throw early;
                }
            }
            Thread.sleep(20);
        }
    }

    private static Message message(JSONObject given) {
        Message message = new Message(given.getString("topic"), Base64.getDecoder().decode(given.getString("body")));
        message.setFlag(given.getIntValue("flag"));
        JSONObject properties = given.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                MessageAccessor.putProperty(message, name, properties.getString(name));
            }
        }
        if (given.getString("tag") != null && !given.getString("tag").isEmpty()) {
            message.setTags(given.getString("tag"));
        }
        if (given.getString("keys") != null && !given.getString("keys").isEmpty()) {
            message.setKeys(given.getString("keys"));
        }
        if (given.getIntValue("delay_level") > 0) {
            message.setDelayTimeLevel(given.getIntValue("delay_level"));
        }
        return message;
    }

    private static MessageQueue queue(JSONObject given) {
        return new MessageQueue(given.getString("topic"), NAME, given.getIntValue("queue"));
    }

    private static JSONArray send(JSONObject command) throws Exception {
        JSONArray results = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject given = messages.getJSONObject(i);
            results.add(result(producer.send(message(given), queue(given))));
        }
        return results;
    }

    private static void batch(JSONObject command, JSONObject done) throws Exception {
        JSONArray given = command.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < given.size(); i++) {
            messages.add(message(given.getJSONObject(i)));
        }
        done.put("result", result(producer.send(messages, queue(given.getJSONObject(0)))));
    }

    private static JSONObject transaction(JSONObject command) throws Exception {
        LocalTransactionState state = LocalTransactionState.valueOf(command.getString("state"));
        return result(transactions.sendMessageInTransaction(message(command.getJSONObject("message")), state));
    }

    private static JSONObject result(SendResult sent) {
        JSONObject result = new JSONObject();
        result.put("status", String.valueOf(sent.getSendStatus()));
        result.put("queue", sent.getMessageQueue().getQueueId());
        result.put("queue_offset", sent.getQueueOffset());
        result.put("message_id", sent.getOffsetMsgId());
        result.put("unique_key", sent.getMsgId());
        return result;
    }

    private static void bounds(JSONObject command, JSONObject done) throws Exception {
        done.put("min", broker.getMessageStore().getMinOffsetInQueue(command.getString("topic"), command.getIntValue("queue")));
        done.put("max", broker.getMessageStore().getMaxOffsetInQueue(command.getString("topic"), command.getIntValue("queue")));
    }

    private static JSONArray pull(JSONObject command) throws Exception {
        MessageQueue queue = queue(command);
        JSONArray messages = new JSONArray();
        for (long at = command.getLongValue("offset"); ; ) {
            PullResult got = puller.pull(queue, command.getString("tag"), at, 32, 10_000);
            if (got.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : got.getMsgFoundList()) {
                    messages.add(shown(message));
                }
            }
            if (got.getPullStatus() == PullStatus.NO_NEW_MSG || got.getNextBeginOffset() <= at
                || got.getNextBeginOffset() > got.getMaxOffset()) {
                return messages;
            }
            at = got.getNextBeginOffset();
        }
    }

    private static JSONArray consume(JSONObject command) throws Exception {
        JSONArray deliveries = new JSONArray();
        JSONObject failures = command.getJSONObject("failures"); // how often each body fails
        Map<String, Integer> left = new ConcurrentHashMap<>();
        for (String body : failures.keySet()) {
            left.put(body, failures.getIntValue(body));
        }
        DefaultMQPushConsumer consumer = client(new DefaultMQPushConsumer(command.getString("group")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        consumer.setConsumeMessageBatchMaxSize(1);
        if (command.getBooleanValue("broadcast")) {
            broadcast(consumer);
        }
        if (command.get("max_retries") != null) {
            consumer.setMaxReconsumeTimes(command.getIntValue("max_retries"));
        }
        consumer.setPersistConsumerOffsetInterval(200);
        // At 0, the default, what sends a failed message back is interrupted, and sends a second copy or none.
        consumer.setAwaitTerminationMillisWhenShutdown(SETTLE_MS);
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
                for (MessageExt message : messages) {
                    String body = Base64.getEncoder().encodeToString(message.getBody());
                    boolean fails = left.merge(body, -1, Integer::sum) >= 0;
                    JSONObject delivery = shown(message);
                    delivery.put("failed", fails);
                    synchronized (deliveries) {
                        deliveries.add(delivery);
                    }
                    if (fails) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        consumer.start();
        await(() -> hasCome(deliveries, command), CONSUME_MS, () -> "these came: " + deliveries);
        consumer.shutdown();
        if (!command.getBooleanValue("broadcast")) {
            saveOffsets(consumer, command.getString("group"));
        }
        return deliveries;
    }

    /** Says whether as many deliveries came as are wanted, and each body that is wanted at the retry that is wanted. */
    private static boolean hasCome(JSONArray deliveries, JSONObject command) {
        Set<List<Object>> came = new HashSet<>();
        synchronized (deliveries) {
            for (Object each : deliveries) {
                JSONObject delivery = (JSONObject) each;
                came.add(List.of(delivery.getString("body"), delivery.getInteger("reconsume_times")));
            }
            if (deliveries.size() < command.getIntValue("count")) {
                return false;
            }
        }
        JSONArray wanted = command.getJSONArray("wanted");
        for (int i = 0; i < wanted.size(); i++) {
            if (!came.contains(List.of(wanted.getJSONArray(i).getString(0), wanted.getJSONArray(i).getInteger(1)))) {
                return false;
            }
        }
        return true;
    }

    /**
     * Sees to it that the broker ends with the last offsets. A client that shuts down says them once and waits for no answer; its
     * last pulls say earlier ones, which other threads of the broker take in, and what is taken in last stands, be it lower.
     * A client that goes on says the newest every few seconds. So when nothing that it sent is left to take in, they are said again.
     */
    private static void saveOffsets(DefaultMQPushConsumer consumer, String group) throws Exception {
        Map<MessageQueue, Long> told = consumer.getDefaultMQPushConsumerImpl().getOffsetStore().cloneOffsetTable(null);
        // The broker has read all from the client when it has read that it leaves, or that its connection is closed.
        await(() -> broker.getConsumerManager().getConsumerGroupInfo(group) == null, SETTLE_MS, () -> group + " has members");
        drain("pullMessageExecutor");
        drain("consumerManageExecutor");
        told.forEach((queue, offset) -> broker.getConsumerOffsetManager()
            .commitOffset("driver", group, queue.getTopic(), queue.getQueueId(), offset));
    }

    /** Waits until a pool of the broker's threads has done what it was asked before: then all of them come here. */
    private static void drain(String name) throws Exception {
        Field field = BrokerController.class.getDeclaredField(name);
        field.setAccessible(true);
        ThreadPoolExecutor pool = (ThreadPoolExecutor) field.get(broker);
        CountDownLatch missing = new CountDownLatch(pool.getCorePoolSize());
        for (long left = missing.getCount(); left > 0; left--) {
            pool.execute(() -> {
                missing.countDown();
                try {
                    missing.await();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            });
        }
        missing.await();
    }

    /** Looks at all prepared messages once, as the broker does every minute, and asks their producers. */
    private static void check() throws Exception {
        // A producer is known to the broker after its first sign of life.
        await(() -> broker.getProducerManager().getAvailableChannel("transactions") != null, SETTLE_MS, () -> "no producer");
        broker.getTransactionalMessageService().check(broker.getBrokerConfig().getTransactionTimeOut(),
            broker.getBrokerConfig().getTransactionCheckMax(), broker.getTransactionalMessageCheckListener());
    }

    private static void await(BooleanSupplier condition, int limitMs, Supplier<String> what) throws Exception {
        long end = System.nanoTime() + limitMs * 1_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("not within " + limitMs + " ms: " + what.get());
            }
            Thread.sleep(5);
        }
    }

    /** The class of the mode is in another package since 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    /** Saves the offsets of groups and of delays, as the broker does every few seconds. */
    private static void save() throws Exception {
        broker.getConsumerOffsetManager().persist();
        Object delays;
        try {
            delays = broker.getClass().getMethod("getScheduleMessageService").invoke(broker);
        } catch (NoSuchMethodException older) {
            delays = broker.getMessageStore().getClass().getMethod("getScheduleMessageService").invoke(broker.getMessageStore());
        }
        delays.getClass().getMethod("persist").invoke(delays);
    }

    private static JSONArray query(JSONObject command) throws Exception {
        JSONArray messages = new JSONArray();
        try {
            for (MessageExt message : admin.queryMessage(command.getString("topic"), command.getString("key"), 64, 0,
                Long.MAX_VALUE).getMessageList()) {
                messages.add(shown(message));
            }
        } catch (org.apache.rocketmq.client.exception.MQClientException none) {
            if (none.getResponseCode() != 208) { // NO_MESSAGE
                throw none;
            }
        }
        return messages;
    }

    private static JSONObject shown(MessageExt message) {
        JSONObject shown = new JSONObject();
        shown.put("topic", message.getTopic());
        shown.put("queue", message.getQueueId());
        shown.put("queue_offset", message.getQueueOffset());
        shown.put("log_offset", message.getCommitLogOffset());
        byte[] body = message.getBody(); // null if it is empty
        shown.put("body", Base64.getEncoder().encodeToString(body == null ? new byte[0] : body));
        shown.put("flag", message.getFlag());
        shown.put("sys_flag", message.getSysFlag());
        shown.put("crc", message.getBodyCRC());
        shown.put("size", message.getStoreSize());
        shown.put("born_time_ms", message.getBornTimestamp());
        shown.put("born_host", text((InetSocketAddress) message.getBornHost()));
        shown.put("store_host", text((InetSocketAddress) message.getStoreHost()));
        shown.put("message_id", ((MessageClientExt) message).getOffsetMsgId());
        shown.put("store_time_ms", message.getStoreTimestamp());
        shown.put("reconsume_times", message.getReconsumeTimes());
        shown.put("prepared_offset", message.getPreparedTransactionOffset());
        shown.put("tag", message.getTags());
        shown.put("keys", message.getKeys());
        shown.put("properties", new TreeMap<>(message.getProperties()));
        return shown;
    }

    private static String text(InetSocketAddress host) {
        StringBuilder hex = new StringBuilder();
        for (byte each : host.getAddress().getAddress()) {
            hex.append(String.format("%02x", each));
        }
        return hex + ":" + host.getPort();
    }
}
